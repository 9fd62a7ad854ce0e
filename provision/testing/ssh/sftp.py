"""SFTP on a mock host, below its root folder only."""

# paramiko defines the names of the methods:
# ruff: noqa: D102

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import paramiko
from paramiko.sftp import SFTP_OK, SFTP_OP_UNSUPPORTED, SFTP_PERMISSION_DENIED

from provision.testing.host.processes import Processes

if TYPE_CHECKING:
    from typing_extensions import Buffer

P = ParamSpec("P")
T = TypeVar("T")


class SftpHost(Protocol):
    """What an SFTP session needs of the host."""

    @property
    def root_path(self) -> str:
        """The folder that stands for `/`."""
        ...

    @property
    def processes(self) -> Processes:
        """The processes of the host, whose user owns the files."""
        ...

    @property
    def disk_is_full(self) -> bool:
        """True while writing fails with ENOSPC."""
        ...


class _User(Protocol):
    user: str


def _as_reply(work: Callable[P, T]) -> Callable[P, T | int]:
    def reply(*args: P.args, **kwargs: P.kwargs) -> T | int:
        try:
            return work(*args, **kwargs)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    return reply


class _Handle(paramiko.SFTPHandle):
    def __init__(self, flags: int, file: int, host: SftpHost) -> None:
        super().__init__(flags)
        self._file = file
        self._host = host

    def read(self, offset: int, length: int) -> bytes | int:
        return _as_reply(os.pread)(self._file, length, offset)

    def write(self, offset: int, data: Buffer) -> int:
        if self._host.disk_is_full:
            return int(paramiko.sftp.SFTP_FAILURE)
        written = _as_reply(os.pwrite)(self._file, bytes(data), offset)
        return int(SFTP_OK) if written == len(bytes(data)) else int(paramiko.sftp.SFTP_FAILURE)

    def stat(self) -> paramiko.SFTPAttributes | int:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self._file))

    def chattr(self, attr: paramiko.SFTPAttributes) -> int:
        if attr.st_mode is not None:
            os.fchmod(self._file, attr.st_mode & 0o7777)
        if attr.st_size is not None:
            os.ftruncate(self._file, attr.st_size)
        return int(SFTP_OK)

    def close(self) -> None:
        os.close(self._file)


class SftpSubsystem(paramiko.SFTPServer):
    """The subsystem; it sends exit status 0 at its end, for which OpenSSH's scp waits."""

    def start_subsystem(
        self, name: str, transport: paramiko.Transport, channel: paramiko.Channel
    ) -> None:
        super().start_subsystem(name, transport, channel)
        try:
            channel.send_exit_status(0)
        except (OSError, EOFError):  # the client has gone
            return


class SftpFiles(paramiko.SFTPServerInterface):
    """The files of one session; a relative path starts at the user's home."""

    def __init__(self, server: paramiko.ServerInterface, host: SftpHost, connection: _User) -> None:
        super().__init__(server)
        self._host = host
        self._home = f"/home/{connection.user}"

    def canonicalize(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._home, self._stripped(path)))

    def _stripped(self, path: str) -> str:
        root = self._host.root_path
        return path[len(root) :] or "/" if path == root or path.startswith(root + "/") else path

    def _real(self, path: str, *, follow: bool = True) -> str:
        """The path on this machine. Raises `PermissionError` outside the host's folder."""
        full = self._host.root_path + self.canonicalize(path)
        known = (
            os.path.realpath(full)
            if follow
            else os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        )
        root = os.path.realpath(self._host.root_path)
        if known != root and not known.startswith(root + "/"):
            raise PermissionError(13, "outside the mock host")
        if (self.canonicalize(path) + "/").startswith("/root/"):
            raise PermissionError(13, "/root cannot be read by the login user")
        return known

    def _give_to_host_user(self, path: str) -> None:
        processes = self._host.processes
        if processes.as_root:
            os.chown(path, processes.uid, processes.gid, follow_symlinks=False)

    @_as_reply
    def list_folder(self, path: str) -> list[paramiko.SFTPAttributes]:
        real = self._real(path)
        found = []
        for name in os.listdir(real):
            attributes = paramiko.SFTPAttributes.from_stat(os.lstat(os.path.join(real, name)), name)
            found.append(attributes)
        return found

    @_as_reply
    def stat(self, path: str) -> paramiko.SFTPAttributes:
        return paramiko.SFTPAttributes.from_stat(os.stat(self._real(path)))

    @_as_reply
    def lstat(self, path: str) -> paramiko.SFTPAttributes:
        return paramiko.SFTPAttributes.from_stat(os.lstat(self._real(path, follow=False)))

    @_as_reply
    def open(
        self, path: str, flags: int, attr: paramiko.SFTPAttributes
    ) -> paramiko.SFTPHandle | int:
        real = self._real(path)
        writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writing and not self._may_write(real):
            return int(SFTP_PERMISSION_DENIED)
        new = not os.path.exists(real)
        mode = 0o666 if attr is None or attr.st_mode is None else attr.st_mode & 0o7777
        file = os.open(real, flags & ~os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, mode & ~0o022)
        if new:
            self._give_to_host_user(real)
        return _Handle(flags, file, self._host)

    def _may_write(self, real: str) -> bool:
        """True in the user's home, /tmp and /mnt/disks, as on Container-Optimized OS."""
        root = os.path.realpath(self._host.root_path)
        return any(
            (real + "/").startswith(f"{root}{folder}/")
            for folder in (self._home, "/tmp", "/mnt/disks")  # noqa: S108 - the host's
        )

    @_as_reply
    def remove(self, path: str) -> int:
        return self._change(path, os.remove)

    @_as_reply
    def rmdir(self, path: str) -> int:
        return self._change(path, os.rmdir)

    @_as_reply
    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        def make(real: str) -> None:
            os.mkdir(real, 0o755)
            self._give_to_host_user(real)

        del attr
        return self._change(path, make)

    def _change(self, path: str, work: Callable[[str], None]) -> int:
        real = self._real(path, follow=False)
        if not self._may_write(real):
            return int(SFTP_PERMISSION_DENIED)
        work(real)
        return int(SFTP_OK)

    @_as_reply
    def rename(self, oldpath: str, newpath: str) -> int:
        target = self._real(newpath, follow=False)
        if os.path.lexists(target):
            return int(paramiko.sftp.SFTP_FAILURE)
        return self.posix_rename(oldpath, newpath)

    @_as_reply
    def posix_rename(self, oldpath: str, newpath: str) -> int:
        target = self._real(newpath, follow=False)
        if not self._may_write(target):
            return int(SFTP_PERMISSION_DENIED)
        return self._change(oldpath, lambda real: os.replace(real, target))

    @_as_reply
    def chattr(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        real = self._real(path)
        if not self._may_write(real):
            return int(SFTP_PERMISSION_DENIED)
        if attr.st_mode is not None:
            os.chmod(real, attr.st_mode & 0o7777)
        if attr.st_mtime is not None:
            os.utime(real, (attr.st_atime or attr.st_mtime, attr.st_mtime))
        if attr.st_size is not None:
            os.truncate(real, attr.st_size)
        return int(SFTP_OK)

    @_as_reply
    def readlink(self, path: str) -> str:
        return os.readlink(self._real(path, follow=False))

    def symlink(self, target_path: str, path: str) -> int:  # noqa: ARG002
        return int(SFTP_OP_UNSUPPORTED)
