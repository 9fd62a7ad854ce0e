"""The project's files as one archive, and the script that puts them into the container."""

from __future__ import annotations

import io
import os
import secrets
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from provision.core.errors import UsageError
from provision.core.shell import RemotePath, Script, script, shell_text
from provision.resources.container import WORKSPACE

HERE = Path(__file__).parent
_LOCK = RemotePath("/run/provision-send.lock")


def project_files(project_dir: Path) -> list[str]:
    """Relative names, sorted by bytes, of the files that git tracks or would track.

    A nested repository lists its own files. Raises `UsageError` where git is not installed and
    where the folder is not in a git repository.
    """
    options = ["-z", "--cached", "--others", "--exclude-standard"]
    command = ["git", "-C", str(project_dir), "ls-files", *options]
    try:
        listing = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise UsageError(
            "git is not installed",
            where=str(project_dir),
            why="it lists the files of the project",
            fix="install git",
        ) from error
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode("utf-8", "replace").strip()
        fix = "git init" if "not a git repository" in why else "git status"
        raise UsageError(
            "git cannot list the project's files", where=str(project_dir), why=why, fix=fix
        ) from error
    names = sorted({name for name in listing.split(b"\0") if name})
    return [file for name in map(os.fsdecode, names) for file in _files(project_dir, name)]


def _files(project_dir: Path, name: str) -> list[str]:
    """The files that a name listed by git stands for. A folder is a nested repository."""
    path = project_dir / name
    if path.is_symlink() or not path.is_dir():
        return [name] if os.path.lexists(path) else []
    if not (path / ".git").exists():  # a submodule that is not checked out
        return []
    return [f"{name.rstrip('/')}/{inner}" for inner in project_files(path)]


def new_stage() -> str:
    """A new name for the staging folder of one archive, relative to the workspace."""
    return f".provision/in.{secrets.token_hex(8)}"


def pack(project_dir: Path, names: Sequence[str], stage: str) -> bytes:
    """The files and the list of their names, as a gzipped tar archive of the folder `stage`.

    Raises `UsageError` for a name with a line break, which would break the list.
    """
    broken = next((name for name in names if "\n" in name), None)
    if broken is not None:
        raise UsageError(
            "a file name has a line break",
            where=repr(broken),
            why="it cannot be sent",
            fix="rename it, or let git ignore it",
        )
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=1
    ) as tar:
        for folder in (".provision", stage, f"{stage}/files"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
            tar.addfile(member)
        name_list = os.fsencode("".join(f"{name}\n" for name in names))
        member = tarfile.TarInfo(f"{stage}/names")
        member.size = len(name_list)
        tar.addfile(member, io.BytesIO(name_list))
        for name in names:
            arcname = f"{stage}/files/{name}"
            tar.add(project_dir / name, arcname=arcname, recursive=False, filter=owned_by_root)
    return stream.getvalue()


def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make root the owner of a member: the local user does not exist on the host."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def receive(container: str, stage: str) -> Script:
    """The script that reads an archive made by `pack` on standard input."""
    return script(
        HERE / "receive.sh",
        name=container,
        dir=WORKSPACE,
        stage=stage,
        place=shell_text(HERE / "place.sh"),
        lock=_LOCK,
    )
