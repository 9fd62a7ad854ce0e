"""The project's files as one stream, and the script that puts them into the container's workspace."""

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
from provision.core.shell import RemotePath, Script, script
from provision.resources.container import WORKSPACE

_LOCK = "/run/provision-send.lock"

# The container has the code in a volume, so `docker cp` puts it there whether or not the image has
# tar. It belongs to root, so root settles it, whoever the image's user is. One sending at a time
# where the host has `flock`; each has a folder of its own, so that two never read each other's
# lists.
_RECEIVE = """
if command -v flock >/dev/null 2>&1 && (: >>"$lock") 2>/dev/null; then
    exec 9>>"$lock"
    flock 9
fi
docker cp - "$name:$dir" 9>&-
docker exec --user 0 --workdir "$dir" "$name" sh -c "$settle" provision "$stage" 9>&-
"""

# What programs wrote stays. The list of what was sent is kept for the next sending; `uniq -u`
# leaves what only the old one has. It goes before the new files come, as a file may have become a
# folder. Bytecode is nobody's work, so it keeps no folder in the way of a file. A file comes by
# rename: a program that runs meanwhile sees the old or the new one, whole.
_SETTLE = """
set -eu
LC_ALL=C
export LC_ALL
stage=$1
old=.provision/files
new=$stage/names
trap 'rm -rf "$stage"' EXIT
remove() { test "$#" = 0 || rm -f -- "$@"; }
prune() {
    sort "$old" "$new" "$new" >"$stage/sorted"
    uniq -u "$stage/sorted" >"$stage/gone"
    set --
    while IFS= read -r file; do
        if test -f "./$file" || test -h "./$file"; then set -- "$@" "./$file"; fi
        if test "$#" -ge 100; then
            remove "$@"
            set --
        fi
    done <"$stage/gone"
    remove "$@"
}
clear_way() {
    find "./$1" -depth -type d -name __pycache__ -exec rm -rf {} + || :
    find "./$1" -depth -type d -exec rmdir {} + 2>/dev/null || :
    if test -d "./$1"; then
        echo "$1 is a file here and a folder there, which holds what programs wrote" >&2
        exit 1
    fi
}
place() {
    test "$#" != 0 || return 0
    test -d "./$at" || mkdir -p "./$at"
    mv -f -- "$@" "./$at/"
}
if test -f "$old"; then prune; fi
at=.
set --
while IFS= read -r file; do
    if test -d "./$file" && ! test -h "./$file"; then clear_way "$file"; fi
    case $file in */*) to=${file%/*} ;; *) to=. ;; esac
    if test "$to" != "$at" || test "$#" -ge 100; then
        place "$@"
        set --
        at=$to
    fi
    set -- "$@" "$stage/files/$file"
done <"$new"
place "$@"
mv -f "$new" "$old"
find .provision -name 'in.*' -mtime +1 -prune -exec rm -rf {} + || :
"""


def project_files(project_dir: Path) -> list[str]:
    """What git would track below the folder: tracked and new files, not the ignored ones. Relative, sorted by bytes.

    Raises `UsageError` where the folder is not in a git repository.
    """
    command = [
        "git",
        "-C",
        str(project_dir),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise UsageError(
            "git is not installed",
            where=str(project_dir),
            why="it says which files are the project's",
            fix="install git",
        ) from error
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode("utf-8", "replace").strip()
        raise UsageError(
            "the project's files are not known", where=str(project_dir), why=why, fix="git init"
        ) from error
    names = sorted({name for name in listed.split(b"\0") if name})
    return [file for name in map(os.fsdecode, names) for file in _files(project_dir, name)]


def _files(project_dir: Path, name: str) -> list[str]:
    """The files behind one name that git lists. A folder is a repository of its own: it says which files are its own."""
    path = project_dir / name
    if path.is_symlink() or not path.is_dir():
        return [name] if os.path.lexists(path) else []
    if not (path / ".git").exists():  # a submodule that was not checked out
        return []
    return [f"{name.rstrip('/')}/{inner}" for inner in project_files(path)]


def new_stage() -> str:
    """A folder of the workspace for one sending."""
    return f".provision/in.{secrets.token_hex(8)}"


def pack(project_dir: Path, names: Sequence[str], stage: str) -> bytes:
    """The files and the list of their names, as a gzipped tar of the folder `stage`.

    Raises `UsageError` for a name with a line break, which no list of lines can hold.
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
        listed = os.fsencode("".join(f"{name}\n" for name in names))
        member = tarfile.TarInfo(f"{stage}/names")
        member.size = len(listed)
        tar.addfile(member, io.BytesIO(listed))
        for name in names:
            tar.add(
                project_dir / name,
                arcname=f"{stage}/files/{name}",
                recursive=False,
                filter=owned_by_root,
            )
    return stream.getvalue()


def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member that is root's where it is unpacked: who has it here is nobody there."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def receive(container: str, stage: str) -> Script:
    """The script that reads what `pack` made on standard input. Two at once wait for each other where there is `flock`."""
    return script(
        _RECEIVE, name=container, dir=WORKSPACE, settle=_SETTLE, lock=RemotePath(_LOCK), stage=stage
    )
