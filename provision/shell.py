"""Scripts as data: quoting, secrets, host paths, and the framing of one exchange. Pure.

A script is constant shell source plus *bindings*: values that become quoted assignments in front of it. Source never
contains data and data never reaches the shell unquoted, so there is nothing to inject into:

    script('mount --bind "$dir" "$dir"', dir=RemotePath("/var/lib/nvidia"))

An exchange sends many such scripts as the sections of one job. Each section runs in a shell of its own under
`timeout -k`, its output framed with a nonce, so that what a login shell prints first is not taken for ours.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from provision.errors import UsageError

MOCK_ROOT_VARIABLE = "PROVISION_MOCK_ROOT"
ARGUMENT_LIMIT_BYTES = 100_000
"""Longest text passed as one argument; Linux refuses more than 128 KiB (MAX_ARG_STRLEN), quoting needs head-room."""

_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z")


@dataclass(frozen=True)
class Secret:
    """A word that is passed to the host and never shown."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret(***)"


@dataclass(frozen=True)
class RemotePath:
    """An absolute path on the host, rendered as "$R"'/the/path'.

    `R` is the host's own variable: empty on a real host, the folder of the host on a mock. So scripts are byte for
    byte the same everywhere.
    """

    path: str

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise UsageError("a path on a host must be absolute", where=repr(self.path), fix="write it from the root, as in /var/lib/x")

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.path


Word: TypeAlias = str | int | RemotePath | Secret


@dataclass(frozen=True)
class Joined:
    """Several words that make one argument, such as `--volume=` + host path + `:/container/path:ro`."""

    parts: tuple[Word, ...]

    def __str__(self) -> str:
        return "".join(str(part) for part in self.parts)


Argument: TypeAlias = Word | Joined


def join(*parts: Word) -> Joined:
    """One argument made of several words."""
    return Joined(parts)


def quote(word: Argument, *, masked: bool = False) -> str:
    """The word as one shell argument, under any POSIX shell. With `masked`, secrets read `***`.

    Raises `UsageError` for a NUL, which no argument can hold.
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
    return text if _PLAIN.match(text) else "'" + text.replace("'", "'\\''") + "'"


@dataclass(frozen=True)
class Script:
    """Constant shell source with its data: `bindings` become assignments, `argv` the positional parameters."""

    source: str
    bindings: tuple[tuple[str, Argument], ...] = ()
    argv: tuple[Argument, ...] | None = None

    def render(self, *, masked: bool = False) -> str:
        """The text a POSIX shell runs. It reads `R`, the root of the host."""
        lines = [f"{name}={quote(value, masked=masked)}" for name, value in self.bindings]
        if self.argv is not None:
            lines.append(" ".join(["set --", *(quote(word, masked=masked) for word in self.argv)]))
        return "\n".join([*lines, self.source.strip("\n")]) + "\n"

    def with_binding(self, name: str, value: Argument) -> Script:
        """The same script with one more variable."""
        return Script(self.source, ((name, value), *self.bindings), self.argv)

    def __str__(self) -> str:
        return self.render(masked=True)


def script(source: str, *, argv: Sequence[Argument] | None = None, **bindings: Argument) -> Script:
    """Constant `source` with values bound to the variables it reads; `argv` becomes "$@"."""
    for name in bindings:
        if not _NAME.match(name):
            raise UsageError("a binding must be a lower-case shell name", where=name)
    return Script(source, tuple(bindings.items()), None if argv is None else tuple(argv))


def command(*words: Argument) -> Script:
    """One plain command with its arguments."""
    return script('"$@"', argv=words)


def payload(data: bytes) -> str:
    """Bytes as the text in which files travel inside a script (base64 in lines of 76 characters)."""
    return base64.encodebytes(data).decode("ascii")


# --- one exchange ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """One script of an exchange.

    `merge` sends standard error where standard output goes, so that people see both in order. A `gate` section is
    not run once an earlier gate section has failed. `strict` runs it under `set -e`.
    """

    key: str
    body: Script
    timeout_s: float
    merge: bool = False
    gate: bool = False
    strict: bool = False


# `wait` returns early when a trap fires, so the section is waited for twice; GNU timeout hands the signal on to its group.
_JOB = """\
R=${{{mock_root}-}}
export R
N={nonce}
H=
T=
trap 'test -z "$T" || kill -TERM "$T" 2>/dev/null; exit 143' TERM HUP INT
run() {{
    test -z "$3" || test -z "$H" || return 0
    printf '\\n%s begin %s\\n' "$N" "$1"
    if test -n "$4"; then exec 4>&1; else exec 4>&2; fi
    if test -n "$6"; then
        printf '%s' "$5" | timeout -k 10 "$2" sh -s 2>&4 4>&- &
    else
        timeout -k 10 "$2" sh -c "$5" </dev/null 2>&4 4>&- &
    fi
    T=$!
    wait "$T"
    E=$?
    T=
    test -z "$3" || test "$E" = 0 || H=1
    printf '\\n%s end %s %s\\n' "$N" "$1" "$E"
}}
{calls}
printf '\\n%s done\\n' "$N"
"""

# The job lives in a session of its own. When the connection goes, standard input ends and the group is ended with it:
# OpenSSH without a terminal would let it run on. `read` is a builtin, so no stray child keeps the channel open.
_LIFELINE = """\
{{ while read -r X <&3; do :; done; kill -TERM -"$J"; sleep 15; kill -KILL -"$J"; }} >/dev/null 2>&1 &
L=$!
exec 3<&-
wait "$J"
E=$?
kill "$L" 2>/dev/null
exit "$E"
"""
_SMALL = "exec 3<&0 </dev/null\nsetsid sh -c {job} 3<&- &\nJ=$!\n" + _LIFELINE
_LARGE = "exec 3<&0 </dev/null\nJOB=$(head -c {size} <&3)\nprintf '%s\\n' \"$JOB\" | setsid sh -s 3<&- &\nJ=$!\n" + _LIFELINE


def job(sections: Sequence[Section], nonce: str) -> str:
    """The whole text of an exchange: every section in order, its output between marks that hold `nonce`."""
    calls = "\n".join(_call(section) for section in sections)
    return _JOB.format(mock_root=MOCK_ROOT_VARIABLE, nonce=nonce, calls=calls)


def _call(section: Section) -> str:
    body = section_text(section)
    large = len(body.encode("utf-8", "surrogateescape")) > ARGUMENT_LIMIT_BYTES
    if large:  # fed on the standard input of its shell, which its commands must not read
        body = "{\n" + body + "} </dev/null\n"
    flags = ["1" if flag else "" for flag in (section.gate, section.merge)]
    words = ("run", section.key, f"{section.timeout_s:g}", *flags, body, "1" if large else "")
    return " ".join(quote(word) for word in words)


def section_text(section: Section) -> str:
    """What the section's own shell runs."""
    return ("set -eu\n" if section.strict else "set -u\n") + section.body.render()


def wrap(text: str, *, become: str = "none") -> tuple[str, bytes]:
    """A job as the command line of a channel and what is sent on its standard input.

    Small jobs travel as the argument of the exec request (two round trips on the wire), large ones on standard
    input (three). The whole runs under one `sudo -n` where `become` is "sudo".
    """
    data = text.encode("utf-8", "surrogateescape")
    if len(data) <= ARGUMENT_LIMIT_BYTES // 2 and len(small := _SMALL.format(job=quote(text))) <= ARGUMENT_LIMIT_BYTES:
        return _shell(small, become), b""
    return _shell(_LARGE.format(size=len(data)), become), data


def _shell(text: str, become: str) -> str:
    return ("exec sudo -n " if become == "sudo" else "exec ") + "sh -c " + quote(text)


_PLAIN_HEADER = "R=${{{mock_root}-}}\nexport R\n"


def lifeline(body: Script, *, become: str = "none") -> tuple[str, bytes]:
    """One unframed script with a lifeline: its output and status are the channel's own."""
    return wrap(_PLAIN_HEADER.format(mock_root=MOCK_ROOT_VARIABLE) + "set -u\n" + body.render(), become=become)


def fed(body: Script, *, become: str = "none") -> str:
    """The command line for a script that itself reads standard input (a tar stream), so without a lifeline."""
    return _shell(_PLAIN_HEADER.format(mock_root=MOCK_ROOT_VARIABLE) + "set -eu\n" + body.render(), become)


# --- reading the answer ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """A section began."""

    key: str


@dataclass(frozen=True)
class Chunk:
    """Bytes that the running section printed."""

    key: str
    data: bytes


@dataclass(frozen=True)
class End:
    """A section ended with this status."""

    key: str
    status: int


@dataclass(frozen=True)
class Done:
    """The job reached its end."""


Frame: TypeAlias = Begin | Chunk | End | Done


class FrameReader:
    """Cuts a stream of bytes, in whatever pieces it arrives, into frames. What precedes the first mark is dropped."""

    def __init__(self, nonce: str) -> None:
        self._mark = b"\n" + nonce.encode("ascii") + b" "
        self._buffer = b"\n"  # a mark may be the very first thing printed
        self._fresh = True
        self._key: str | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes. Never raises, whatever the bytes."""
        self._buffer += data
        while True:
            found = self._buffer.find(self._mark)
            if found < 0:
                yield from self._flush(len(self._buffer) - self._possible_mark())
                return
            end_of_line = self._buffer.find(b"\n", found + len(self._mark))
            yield from self._flush(found)
            if end_of_line < 0:
                return
            end_of_line -= found
            line = self._buffer[len(self._mark) : end_of_line]
            self._buffer = self._buffer[end_of_line + 1 :]
            if (frame := self._frame(line)) is not None:
                yield frame

    def _frame(self, line: bytes) -> Frame | None:
        match line.decode("utf-8", "replace").split(" "):
            case ["begin", key]:
                self._key = key
                return Begin(key)
            case ["end", key, status] if status.isascii() and status.isdigit():
                self._key = None
                return End(key, int(status))
            case ["done"]:
                self._key = None
                return Done()
            case _:
                return None

    def _flush(self, size: int) -> Iterator[Frame]:
        chunk, self._buffer = self._buffer[:size], self._buffer[size:]
        if chunk and self._key is not None:
            yield Chunk(self._key, chunk)

    def _possible_mark(self) -> int:
        """Length of the longest tail that could still grow into a mark."""
        start = max(0, len(self._buffer) - len(self._mark) + 1)
        for at in range(start, len(self._buffer)):
            if self._mark.startswith(self._buffer[at:]):
                return len(self._buffer) - at
        return 0


class LineSplitter:
    """Turns chunks of bytes into lines of text; a carriage return ends a line too, as progress bars use it."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self._line = line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Hand on every line that `data` completes."""
        *lines, self._rest = re.split(rb"\r\n|\n|\r(?!\Z)", self._rest + data)
        for line in lines:
            self._line(line.decode("utf-8", "replace"))

    def close(self) -> None:
        """Hand on what is left without a line end."""
        if rest := self._rest.rstrip(b"\r"):
            self._line(rest.decode("utf-8", "replace"))
        self._rest = b""


def fields(text: str) -> Mapping[str, str]:
    """`key=value` lines as a mapping; lines without `=` are left out, the last of a repeated key wins."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value for key, value in pairs}
