"""The project's files as one stream, and the script that puts them into the container's workspace."""

from __future__ import annotations

import io
import os
import secrets
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from provision.errors import UsageError
from provision.resources.docker import WORKSPACE
from provision.shell import RemotePath, Script, script

_LOCK = "/run/provision-send.lock"

# The container has the code in a volume, so `docker cp` puts it there whether or not the image has tar. The names come
# first, up to an empty line: what is gone here is removed there before the copy, which can put no folder where a file is.
# `read` takes not one byte too many from a pipe, so the tar behind the names stays whole. One sending at a time.
_RECEIVE = """
if command -v flock >/dev/null 2>&1 && (: >>"$lock") 2>/dev/null; then
    exec 9>>"$lock"
    flock 9
fi
while IFS= read -r line && test -n "$line"; do
    printf '%s\\n' "$line"
done | docker exec --interactive --workdir "$dir" "$name" sh -c "$prune" provision "$token" 9>&-
docker cp - "$name:$dir" 9>&-
"""

# What programs wrote stays. The list of what was sent is kept for the next sending; `uniq -u` leaves what only the old
# one has. Bytecode is nobody's work, so it keeps no folder in the way of a file.
_PRUNE = """
set -eu
LC_ALL=C
export LC_ALL
mkdir -p .provision
new=.provision/files.$1
trap 'rm -f "$new" "$new.sorted" "$new.gone"' EXIT
cat >"$new"
if test -f .provision/files; then
    sort .provision/files "$new" "$new" >"$new.sorted"
    uniq -u "$new.sorted" >"$new.gone"
    set --
    while IFS= read -r file; do
        if test -f "./$file" || test -h "./$file"; then set -- "$@" "./$file"; fi
        if test "$#" -ge 100; then
            rm -f -- "$@"
            set --
        fi
    done <"$new.gone"
    test "$#" = 0 || rm -f -- "$@"
fi
while IFS= read -r file; do
    if test -d "./$file" && ! test -h "./$file"; then
        find "./$file" -depth -type d -name __pycache__ -exec rm -rf {} + || :
        find "./$file" -depth -type d -exec rmdir {} + 2>/dev/null || :
        if test -d "./$file"; then
            echo "$file is a file here and a folder there, which holds what programs wrote" >&2
            exit 1
        fi
    fi
done <"$new"
mv -f "$new" .provision/files
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
    return [file for name in map(os.fsdecode, names) for file in _files(project_dir, name)]


def _files(project_dir: Path, name: str) -> list[str]:
    """The files behind one name that git lists. A folder is a repository of its own: it says which files are its own."""
    path = project_dir / name
    if path.is_symlink() or not path.is_dir():
        return [name] if os.path.lexists(path) else []
    if not (path / ".git").exists():  # a submodule that was not checked out
        return []
    return [f"{name.rstrip('/')}/{inner}" for inner in project_files(path)]


def pack(project_dir: Path, names: Sequence[str]) -> list[bytes]:
    """What `receive` reads: the names of the files, up to an empty line, then the files as a gzipped tar."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as tar:
        for name in names:
            tar.add(project_dir / name, arcname=name, recursive=False, filter=owned_by_root)
    listed = "".join(f"{name}\n" for name in names if "\n" not in name)
    return [os.fsencode(f"{listed}\n"), stream.getvalue()]


def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member that is root's where it is unpacked: who has it here is nobody there."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def receive(container: str) -> Script:
    """The script that reads what `pack` made on standard input. Two of them at once wait for each other where there is `flock`."""
    return script(_RECEIVE, name=container, dir=WORKSPACE, prune=_PRUNE, lock=RemotePath(_LOCK), token=secrets.token_hex(8))
