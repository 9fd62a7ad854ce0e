"""The project's files as one tar, and the script that puts them into the container's workspace."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

from provision.errors import UsageError
from provision.resources.docker import WORKSPACE
from provision.shell import Script, script

LIST = ".provision/files"
"""The list of what was sent, kept in the workspace; the next sending removes what is no longer on it."""

# The container has the code in a volume, so `docker cp` puts it there whether or not the image has tar. A file that is
# gone here is removed there, but what programs wrote stays.
_RECEIVE = """
docker cp - "$name:$dir"
docker exec --workdir "$dir" "$name" sh -c "$prune"
"""
_PRUNE = """
set -eu
if test -f .provision/files; then
    while IFS= read -r file; do
        grep -qxF -- "$file" .provision/files.new || rm -f -- "./$file"
    done <.provision/files
fi
mv -f .provision/files.new .provision/files
"""


def project_files(project_dir: Path) -> list[str]:
    """What git would track below the folder: tracked and new files, not the ignored ones. Relative, sorted by bytes.

    Raises `UsageError` where the folder is not in a git repository.
    """
    command = ["git", "-C", str(project_dir), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise UsageError(
            "git is not installed", where=str(project_dir), why="it says which files are the project's", fix="install git"
        ) from error
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode("utf-8", "replace").strip()
        raise UsageError("the project's files are not known", where=str(project_dir), why=why, fix="git init") from error
    names = sorted({name for name in listed.split(b"\0") if name})
    return [name for name in map(os.fsdecode, names) if os.path.lexists(project_dir / name)]


def pack(project_dir: Path) -> bytes:
    """The project's files as a gzipped tar, with the list of them for the next time."""
    names = project_files(project_dir)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as tar:
        for name in names:
            tar.add(project_dir / name, arcname=name, recursive=False, filter=_owned_by_root)
        listed = "".join(f"{name}\n" for name in names if "\n" not in name).encode("utf-8", "surrogateescape")
        _add(tar, f"{LIST}.new", listed)
    return stream.getvalue()


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    folder = tarfile.TarInfo(name.rpartition("/")[0])
    folder.type = tarfile.DIRTYPE
    folder.mode = 0o755
    tar.addfile(folder)
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def receive(container: str) -> Script:
    """The script that reads such a tar on standard input."""
    return script(_RECEIVE, name=container, dir=WORKSPACE, prune=_PRUNE)
