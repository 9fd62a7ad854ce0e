"""The build context: a reproducible tar.gz of Dockerfile, requirements and the user's files.

Pure, but for `read_context_dir`, which reads a folder.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.core.errors import UsageError

CONTEXT_LIMIT_BYTES = 64 * 1024 * 1024
"""Limit of the files before compression. The context travels over SSH; data belongs into a bucket
or a volume."""

DEFAULT_IGNORE = """\
.git
.venv
.cache
**/__pycache__
**/*.pyc
"""
"""The rules for a folder without a .dockerignore: files that change without the code changing."""


@dataclass(frozen=True)
class ContextFile:
    """One file or symbolic link of a build context. `path` is relative, with forward slashes."""

    path: str
    content: bytes = b""
    executable: bool = False
    link_to: str | None = None


@dataclass(frozen=True)
class IgnoreRule:
    """One line of a .dockerignore. `keeps` is True for a line that begins with `!`."""

    pattern: re.Pattern[str]
    keeps: bool


def build_context(dockerfile: str, requirements: str, context_dir: Path | None) -> bytes:
    """A tar.gz for `docker build -`: Dockerfile, requirements.txt, and the files of `context_dir`.

    Blank requirements are left out. The same input gives the same archive: sorted, owner 0, time 0,
    modes 0644 and 0755. The .dockerignore is left out, as it has been applied: a daemon that
    applied it again could drop a generated file. Raises `UsageError` when the files are larger than
    `CONTEXT_LIMIT_BYTES`, or when a generated file would replace one that differs.
    """
    generated = {"Dockerfile": dockerfile.encode()}
    if requirements.strip():
        generated["requirements.txt"] = requirements.encode()
    files = [] if context_dir is None else read_context_dir(context_dir)
    for file in files:
        if file.path in generated and file.content != generated[file.path]:
            raise UsageError(
                "the folder has a file of the name of a generated one",
                where=f"{context_dir}/{file.path}",
                why=f"the build context already holds the {file.path} made from the settings",
                fix="leave it out of the context:"
                f" a line /{file.path} in {context_dir}/.dockerignore",
            )
    return pack_context(
        [
            *(ContextFile(path, content) for path, content in generated.items()),
            *(file for file in files if file.path not in generated),
        ]
    )


def pack_context(files: Sequence[ContextFile]) -> bytes:
    """`files` as a deterministic tar.gz."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(files, key=lambda file: file.path):
            entry = tarfile.TarInfo(file.path)
            entry.mode = 0o755 if file.executable else 0o644
            entry.size = len(file.content)
            if file.link_to is not None:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, file.link_to, 0o777
            archive.addfile(entry, io.BytesIO(file.content))
    return gzip.compress(buffer.getvalue(), mtime=0)


def context_digest(context: bytes) -> str:
    """SHA-256 of the tar in a context, in hexadecimal.

    It is that of the tar before compression, since zlib's output differs between machines.
    """
    return hashlib.sha256(gzip.decompress(context)).hexdigest()


# --- .dockerignore --------------------------------------------------------------------------------


def parse_dockerignore(text: str, *, where: str) -> list[IgnoreRule]:
    """The rules of a .dockerignore (Docker, "Dockerfile reference", .dockerignore file).

    Supported are comments, `*`, `?`, `[a-z]`, `**`, `!` and a leading or trailing slash. Raises
    `UsageError` for a backslash, for `..` and for an invalid pattern.
    """
    rules = []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        rule = line.strip()
        if not rule or line.startswith("#"):
            continue
        keeps = rule.startswith("!")
        path = "/".join(
            part for part in rule.removeprefix("!").strip().split("/") if part not in ("", ".")
        )
        if "\\" in rule or ".." in path.split("/"):
            raise UsageError(
                "a pattern that is not supported",
                where=f"{where}:{number}",
                why=f"{rule!r} holds a backslash or '..'",
            )
        if path:
            rules.append(IgnoreRule(_compile(path, f"{where}:{number}"), keeps))
    return rules


def is_ignored(path: str, rules: Sequence[IgnoreRule]) -> bool:
    """True when the last rule that matches `path` or a folder above it leaves it out."""
    ignored = False
    for rule in rules:
        if ignored == rule.keeps and rule.pattern.match(path):
            ignored = not rule.keeps
    return ignored


_GLOB = re.compile(
    r"(?P<any>\*\*/?)|(?P<star>\*)|(?P<one>\?)|(?P<set>\[\^?[^\]]+\])|(?P<rest>[^*?\[]+|\[)"
)


def _compile(glob: str, where: str) -> re.Pattern[str]:
    parts = {"star": "[^/]*", "one": "[^/]"}
    regex = ""
    for token in _GLOB.finditer(glob):
        kind, text = token.lastgroup or "", token[0]
        if kind == "any":
            regex += "(?:.*/)?" if text.endswith("/") else ".*"
        elif kind == "set":
            regex += text
        else:
            regex += parts.get(kind) or re.escape(text)
    try:
        return re.compile(rf"{regex}(?:/.*)?\Z", re.DOTALL)
    except re.error as error:
        raise UsageError(
            "a pattern that is not supported", where=where, why=f"{glob!r}: {error}"
        ) from error


# --- the files of a folder ------------------------------------------------------------------------


def read_context_dir(folder: Path) -> list[ContextFile]:
    """The files of `folder` that its .dockerignore does not leave out.

    Raises `UsageError` when there is no such folder, for an entry that is neither file, folder nor
    link, and for files larger than `CONTEXT_LIMIT_BYTES`.
    """
    if not folder.is_dir():
        raise UsageError("there is no such folder", where=str(folder))
    ignore = folder / ".dockerignore"
    rules = parse_dockerignore(
        ignore.read_text(encoding="utf-8") if ignore.is_file() else DEFAULT_IGNORE,
        where=str(ignore),
    )
    paths = sorted(path for path in _walk(folder, folder, rules) if path != ignore)
    _check_size(folder, paths)
    return [_read(folder, path) for path in paths]


def _walk(root: Path, folder: Path, rules: Sequence[IgnoreRule]) -> Iterator[Path]:
    may_prune = not any(rule.keeps for rule in rules)
    for path in folder.iterdir():
        ignored = is_ignored(path.relative_to(root).as_posix(), rules)
        if path.is_dir() and not path.is_symlink():
            if not (ignored and may_prune):
                yield from _walk(root, path, rules)
        elif not ignored:
            yield path


def _check_size(folder: Path, paths: Sequence[Path]) -> None:
    sizes = {path: path.lstat().st_size for path in paths}
    total = sum(sizes.values())
    if total <= CONTEXT_LIMIT_BYTES:
        return
    largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
    listed = "\n".join(
        f"{sizes[path] / 2**20:8.1f} MiB  {path.relative_to(folder).as_posix()}" for path in largest
    )
    raise UsageError(
        f"the build context is {total / 2**20:.0f} MiB,"
        f" {CONTEXT_LIMIT_BYTES // 2**20} MiB are allowed",
        where=str(folder),
        why=f"the largest of {len(paths)} files:\n{listed}",
        fix=f"leave them out: one line each in {folder}/.dockerignore",
    )


def _read(folder: Path, path: Path) -> ContextFile:
    name = path.relative_to(folder).as_posix()
    if path.is_symlink():
        return ContextFile(name, link_to=path.readlink().as_posix())
    if not path.is_file():
        raise UsageError(
            "neither a file, a folder nor a link",
            where=str(path),
            fix=f"a line /{name} in {folder}/.dockerignore",
        )
    return ContextFile(name, path.read_bytes(), executable=bool(path.stat().st_mode & 0o100))
