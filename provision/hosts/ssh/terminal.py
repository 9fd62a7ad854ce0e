"""Interactive sessions: the user's terminal becomes the host's.

The system's `ssh` does it where there is one, with the key that is pinned and the user's own
configuration for the way there. Without it, paramiko does: raw mode, window size, exit status.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.core.errors import HostKeyMismatch, Unreachable
from provision.core.model import Host
from provision.core.shell import Script, script
from provision.hosts.known_hosts import KnownHosts, pin_name
from provision.hosts.ssh import dial, iap
from provision.hosts.ssh.config import SshConfig

if TYPE_CHECKING:
    from provision.hosts.ssh.connection import SshTransport

_BODY = """
R=${PROVISION_MOCK_ROOT-}
export R
eval "$body"
"""
_CHUNK_BYTES = 32 * 1024
_SSH_FAILED = 255
"""ssh(1), EXIT STATUS: that of the remote command, or 255 if an error occurred."""
_CONNECT_S = 10
_SAID_LINES = 5
_VERIFICATION_FAILED = "Host key verification failed"


def interactive(
    host: Host,
    body: Script | None,
    *,
    known_hosts: KnownHosts,
    environ: Mapping[str, str],
    become: bool = True,
    ssh: str | None = "ssh",
) -> int:
    """Run a login shell (or `body`) of `host` on this terminal and return its exit status.

    `body` runs as root where the host's `become` says how, unless `become` is False. Without a
    terminal on standard input none is asked for on the host. `ssh` is the program to use; None, or
    one that is not there, means paramiko. Raises `Unreachable` when the host was not reached,
    `HostKeyMismatch` when its key was not accepted.

    `ssh` ends with 255 when it did not get there, and a program may, too. Then the same `ssh` is
    asked once more, without a terminal, to run `true`: when that fails with 255 as well, nobody got
    there; otherwise 255 is the program's.
    """
    remote = None if body is None else remote_command(body, become=become and host.become == "sudo")
    if host.is_local:
        shell = environ.get("SHELL") or "/bin/sh"
        return _run([shell, "-l"] if remote is None else ["/bin/sh", "-c", remote], environ)
    program = shutil.which(ssh, path=environ.get("PATH")) if ssh else None
    if program is None:
        return _with_paramiko(host, remote, known_hosts, environ)
    with pinned_file(host, known_hosts) as pins:
        words = ssh_arguments(
            host, pins=pins, environ=environ, terminal=sys.stdin.isatty(), remote=remote
        )
        status = _run([program, *words], environ)
        if status == _SSH_FAILED:
            _check_reached(program, host, pins, known_hosts.own, environ)
        return status


def _check_reached(
    program: str, host: Host, pins: Path | None, own: Path, environ: Mapping[str, str]
) -> None:
    """Raise `Unreachable`, with what ssh says, when it does not get to the host without asking anybody.

    `pins` is gone by the time that somebody tries the command of the error: that one names the file
    that stays.
    """
    words, lasting = (
        ssh_arguments(host, pins=file, environ=environ, terminal=False, remote="true")
        for file in (pins, own if host.key_alias else None)
    )
    fix = shlex.join([program, "-v", *lasting])
    command = [program, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", *words]
    try:
        again = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=4 * _CONNECT_S,
            check=False,
        )
        said, reached = (
            again.stderr.decode("utf-8", "replace").strip(),
            again.returncode != _SSH_FAILED,
        )
    except subprocess.TimeoutExpired:
        said, reached = f"no answer after {4 * _CONNECT_S} s", False
    if not reached and _VERIFICATION_FAILED in said:
        raise HostKeyMismatch(
            "the host's key is not the pinned one",
            where=host.name,
            why=_essence(said, str(pins)),
            fix=fix,
        )
    if not reached:
        why = (
            "\n".join(said.splitlines()[-_SAID_LINES:])
            or f"{program} ended with status {_SSH_FAILED}"
        )
        if host.proxy:
            raise iap.explained(host, why)
        raise Unreachable("ssh did not get there", where=host.name, why=why, fix=fix)


def _essence(said: str, gone: str) -> str:
    """What ssh says of a key, without its frame of at-signs and its advice about a file that is gone."""
    return "\n".join(
        line
        for line in said.splitlines()
        if line.strip() and not line.startswith("@") and gone not in line
    )


def remote_command(body: Script, *, become: bool) -> str:
    """The command line for the host's login shell that runs `body` under sh, under `sudo -n` where asked."""
    words = ("sudo", "-n", "sh", "-c") if become else ("sh", "-c")
    return script('exec "$@"', argv=(*words, script(_BODY, body=body.render()).render())).render()


def ssh_arguments(
    host: Host,
    *,
    pins: Path | None,
    environ: Mapping[str, str],
    terminal: bool = True,
    remote: str | None = None,
) -> list[str]:
    """The words after `ssh`. `pins` is a known_hosts file that holds the host's pinned keys under its pin name."""
    options = [
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        f"ServerAliveInterval={dial.KEEPALIVE_S}",
    ]
    if pins:
        alias = pin_name(host.address, host.port, host.key_alias)
        options += [
            f"UserKnownHostsFile={_option_path(pins)}",
            "GlobalKnownHostsFile=none",
            f"HostKeyAlias={alias}",
            "CheckHostIP=no",
        ]
    if host.proxy:
        options.append(f"ProxyCommand={host.proxy_command}")
    if host.identity:
        options += [
            f"IdentityFile={_option_path(Path(host.identity).expanduser())}",
            "IdentitiesOnly=yes",
        ]
    words = ["-t" if terminal else "-T", *(_config_file(environ))]
    words += [] if host.port is None else ["-p", str(host.port)]
    words += ["-l", dial.check_user(host.user, where=host.name)] if host.user else []
    words += [word for option in options for word in ("-o", option)]
    return [
        *words,
        "--",
        dial.check_host_name(host.address, where=host.name),
        *([remote] if remote is not None else []),
    ]


def pin_options(host: Host, files: Sequence[Path]) -> list[str]:
    """The options of ssh(1) under which it looks the host's key up in `files`, and asks nobody about one that is not there."""
    alias = [f"HostKeyAlias={host.key_alias}", "CheckHostIP=no"] if host.key_alias else []
    known = "UserKnownHostsFile=" + " ".join(_option_path(file) for file in files)
    return [known, *alias, "StrictHostKeyChecking=yes", "UpdateHostKeys=no"]


def _option_path(path: Path) -> str:
    """A path as ssh_config reads it: in quotes, because it splits at spaces, and with its percent signs doubled."""
    return '"' + str(path).replace("%", "%%").replace('"', '\\"') + '"'


def _config_file(environ: Mapping[str, str]) -> list[str]:
    """`-F` when HOME is not the account's own: ssh asks the account, not the environment, where ~/.ssh is."""
    home = environ.get("HOME")
    if not home or Path(home) == Path(pwd.getpwuid(os.getuid()).pw_dir):
        return []
    config = Path(home) / ".ssh" / "config"
    return ["-F", str(config) if config.is_file() else "none"]


@contextlib.contextmanager
def pinned_file(host: Host, known_hosts: KnownHosts) -> Iterator[Path | None]:
    """A known_hosts file with just the keys pinned for `host`; None when there are none, so that ssh's own files count."""
    name = pin_name(host.address, host.port, host.key_alias)
    pins = known_hosts.pins(host, name).known
    if not any(not pin.revoked for pin in pins):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        path = Path(folder) / "known_hosts"
        path.write_text(
            "".join(f"{'@revoked ' if pin.revoked else ''}{name} {pin.key.line}\n" for pin in pins),
            encoding="utf-8",
        )
        yield path


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a program on this terminal; Ctrl-C is for it, not for us."""
    with subprocess.Popen(argv, env=dict(environ)) as process, _ignoring_interrupts():
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- without the system's ssh ---------------------------------------------------------------------


def _with_paramiko(
    host: Host, remote: str | None, known_hosts: KnownHosts, environ: Mapping[str, str]
) -> int:
    from provision.hosts.ssh.connection import connect

    transport = connect(host, known_hosts=known_hosts, ssh_config=SshConfig.of_user(environ))
    try:
        return attach(transport, remote, term=environ.get("TERM", "vt100"))
    finally:
        transport.close()


def attach(
    transport: SshTransport, remote: str | None, *, term: str, stdin: int = 0, stdout: int = 1
) -> int:
    """Connect two file descriptors to a terminal on the host until its program ends; returns the exit status.

    Keys go over as they are typed: Ctrl-C reaches the host's program, not ours. Raises
    `Unreachable` when the connection is lost.
    """
    size = os.get_terminal_size(stdin) if os.isatty(stdin) else None
    channel = transport.open_terminal(
        remote, term=term, size=(size.columns, size.lines) if size else None
    )
    try:
        with _raw(stdin), _resizing(channel, stdin):
            _pump(channel, stdin, stdout)
        return transport.exit_status(channel)
    finally:
        channel.close()


def _pump(channel: Any, stdin: int, stdout: int) -> None:
    sources = [channel, stdin]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if channel in readable and not _copy_output(channel, stdout):
            return
        if stdin in readable:
            data = os.read(stdin, _CHUNK_BYTES)
            try:
                if data:
                    channel.sendall(data)
                else:
                    sources.remove(stdin)
                    channel.shutdown_write()
            except (
                OSError
            ):  # the program has ended; the last of its output and its status are still to come
                sources = [channel]


def _copy_output(channel: Any, stdout: int) -> bool:
    """Write what has arrived; False when both streams have ended."""
    seen = False
    if channel.recv_stderr_ready():
        seen = True
        _write_all(2, channel.recv_stderr(_CHUNK_BYTES))
    if channel.recv_ready() or not seen:
        data = channel.recv(_CHUNK_BYTES)
        _write_all(stdout, data)
        seen = seen or bool(data)
    return seen


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # what was typed ahead counts
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing(channel: Any, fd: int) -> Iterator[None]:
    """Tell the host when the window changes. Signals are the main thread's: elsewhere the size stays."""
    if not os.isatty(fd) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def resize(_number: int, _frame: object) -> None:
        size = os.get_terminal_size(fd)
        channel.resize_pty(width=size.columns, height=size.lines)

    handler: Callable[[int, Any], None] = resize
    before = signal.signal(signal.SIGWINCH, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
