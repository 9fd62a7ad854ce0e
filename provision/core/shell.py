"""Scripts as data: quoting, secrets, host paths, script files. Pure.

A script is constant shell source plus *bindings*: values that become quoted assignments in front of
it. Source never contains data and data never reaches the shell unquoted, so there is nothing to
inject into:

    script('mount --bind "$dir" "$dir"', dir=RemotePath("/var/lib/nvidia"))
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

from provision.core.errors import UsageError

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package `provision`."""
MOCK_ROOT_VARIABLE = "PROVISION_MOCK_ROOT"
ARGUMENT_LIMIT_BYTES = 100_000
"""Longest text passed as one argument. Linux refuses more than 128 KiB (MAX_ARG_STRLEN); the rest
is head-room for quoting."""

_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z")


@dataclass(frozen=True)
class Secret:
    """A word that is sent to the host and never printed."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret(***)"


@dataclass(frozen=True)
class RemotePath:
    """An absolute path on the host, rendered as "$R"'/the/path'.

    The variable `R` is set on the host: it is empty on a real host and the host's folder on a mock.
    So scripts are the same on both, byte for byte. Raises `UsageError` for a relative path.
    """

    path: str

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise UsageError(
                "a path on a host must be absolute",
                where=repr(self.path),
                fix="write it from the root, as in /var/lib/x",
            )

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.path


Word: TypeAlias = str | int | RemotePath | Secret


@dataclass(frozen=True)
class Joined:
    """Several words that make one argument, such as `--volume=` + host path + `:/container:ro`."""

    parts: tuple[Word, ...]

    def __str__(self) -> str:
        return "".join(str(part) for part in self.parts)


Argument: TypeAlias = Word | Joined


def join(*parts: Word) -> Joined:
    """One argument made of several words."""
    return Joined(parts)


def quote(word: Argument, *, masked: bool = False) -> str:
    """The word as one argument of a POSIX shell. With `masked`, a secret reads `***`.

    Raises `UsageError` for a word with a NUL and for one that has no UTF-8 encoding.
    """
    match word:
        case Joined(parts):
            return "".join(quote(part, masked=masked) for part in parts) or "''"
        case RemotePath(path):
            return '"$R"' + _single(path)
        case Secret(value):
            return "'***'" if masked else _single(value)
        case _:
            return _single(str(word))


def _single(text: str) -> str:
    if "\0" in text:
        raise UsageError("a NUL cannot be passed to a command", where=repr(text), fix="remove it")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(
            "this cannot be written in UTF-8", where=repr(text), why=str(error), fix="remove it"
        ) from error
    return text if _PLAIN.match(text) else "'" + text.replace("'", "'\\''") + "'"


@dataclass(frozen=True)
class Script:
    """Constant shell source with its data.

    `bindings` become assignments in front of the source, `argv` the positional parameters.
    """

    source: str
    bindings: tuple[tuple[str, Argument], ...] = ()
    argv: tuple[Argument, ...] | None = None

    def render(self, *, masked: bool = False) -> str:
        """The text that a POSIX shell runs. It reads `R`, the root of the host."""
        lines = [f"{name}={quote(value, masked=masked)}" for name, value in self.bindings]
        if self.argv is not None:
            lines.append(" ".join(["set --", *(quote(word, masked=masked) for word in self.argv)]))
        return "\n".join([*lines, self.source.strip("\n")]) + "\n"

    @property
    def has_secret(self) -> bool:
        """True when one of its words is a `Secret`.

        Such a script is never passed as an argument, which every process of the host could read.
        """
        words = [value for _, value in self.bindings] + list(self.argv or ())
        return any(
            isinstance(part, Secret)
            for word in words
            for part in (word.parts if isinstance(word, Joined) else (word,))
        )

    def with_bindings(self, bindings: Mapping[str, Argument]) -> Script:
        """A copy with more variables, which are bound before its own."""
        return Script(self.source, (*bindings.items(), *self.bindings), self.argv)

    def __str__(self) -> str:
        return self.render(masked=True)


def script(
    source: str | Path,
    *,
    uses: Sequence[str] = (),
    argv: Sequence[Argument] | None = None,
    **bindings: Argument,
) -> Script:
    """A script: constant shell source with values for the variables that it reads.

    `source` is a one-liner, or the path of a `.sh` file beside the calling module. `uses` names
    files of shared functions, relative to the package `provision`; they are put in front of it.
    `argv` becomes "$@". Raises `UsageError` for a binding whose name is not lower-case.
    """
    for name in bindings:
        if not _NAME.match(name):
            raise UsageError("a binding must be a lower-case shell name", where=name)
    text = shell_text(source, *uses) if isinstance(source, Path) else source
    return Script(text, tuple(bindings.items()), None if argv is None else tuple(argv))


@cache
def shell_text(path: Path, *uses: str) -> str:
    """The text of a script file as it is sent to a host, behind the files that `uses` names.

    Comment lines, empty lines and indentation are left out: they cost nothing on the wire.
    """
    files = [*(PACKAGE / name for name in uses), path]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    lines = (line.lstrip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


def command(*words: Argument) -> Script:
    """A script of one command with its arguments."""
    return script('"$@"', argv=words)


def payload(data: bytes) -> str:
    """The bytes in base64, in lines of 76 characters: how files travel inside a script."""
    return base64.encodebytes(data).decode("ascii")


def fields(text: str) -> Mapping[str, str]:
    """The `key=value` lines of a text; the last of a repeated key counts, other lines do not."""
    pairs = (line.split("=", 1) for line in text.split("\n") if "=" in line)
    return {key.strip(): value for key, value in pairs}
