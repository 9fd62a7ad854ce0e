"""Scripts as data: quoting, secrets, host paths, and the framing of one exchange. Pure.

A script is constant shell source plus *bindings*: values that become quoted assignments in front of
it. Source never contains data and data never reaches the shell unquoted, so there is nothing to
inject into:

    script('mount --bind "$dir" "$dir"', dir=RemotePath("/var/lib/nvidia"))

An exchange sends many such scripts as the sections of one job. Each section runs in a shell of its
own under `timeout -k`, its output framed with a nonce, so that what a login shell prints first is
not taken for ours.
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
PATIENCE_S = 10
"""How long processes may take to end after SIGTERM before they are killed."""
ARGUMENT_LIMIT_BYTES = 100_000
"""Longest text passed as one argument; Linux refuses more than 128 KiB (MAX_ARG_STRLEN), quoting
needs head-room."""

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

    `R` is the host's own variable: empty on a real host, the folder of the host on a mock. So
    scripts are byte for byte the same everywhere.
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

    Raises `UsageError` for what no argument can hold: a NUL, half a character.
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

    @property
    def has_secret(self) -> bool:
        """True when a word of it is a `Secret`: such a script never becomes an argument, which every process could read."""
        words = [value for _, value in self.bindings] + list(self.argv or ())
        return any(
            isinstance(part, Secret)
            for word in words
            for part in (word.parts if isinstance(word, Joined) else (word,))
        )

    def with_bindings(self, bindings: Mapping[str, Argument]) -> Script:
        """The same script with more variables, bound before its own."""
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
    """Constant shell source with values bound to the variables it reads; `argv` becomes "$@".

    `source` is a one-liner, or the path of a `.sh` file beside the module that calls. `uses` names
    files of shared functions, relative to the package `provision`, that are put in front of it.
    Raises `UsageError` for a binding that is not a lower-case name.
    """
    for name in bindings:
        if not _NAME.match(name):
            raise UsageError("a binding must be a lower-case shell name", where=name)
    text = shell_text(source, *uses) if isinstance(source, Path) else source
    return Script(text, tuple(bindings.items()), None if argv is None else tuple(argv))


@cache
def shell_text(path: Path, *uses: str) -> str:
    """The text of a `.sh` file of the package as it is sent, behind the files of shared functions that `uses` names.

    Comment lines and empty lines stay here: a file may explain itself at no cost on the wire.
    """
    files = [*(PACKAGE / name for name in uses), path]
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return (
        "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))
        + "\n"
    )


def command(*words: Argument) -> Script:
    """One plain command with its arguments."""
    return script('"$@"', argv=words)


def payload(data: bytes) -> str:
    """Bytes as the text in which files travel inside a script (base64 in lines of 76 characters)."""
    return base64.encodebytes(data).decode("ascii")


# --- one exchange ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """One script of an exchange.

    `merge` sends standard error where standard output goes, so that people see both in order. A
    `gate` section is not run once an earlier gate section has failed. `strict` runs it under `set
    -e`.
    """

    key: str
    body: Script
    timeout_s: float
    merge: bool = False
    gate: bool = False
    strict: bool = False


# Ends a process group: asks, waits a while, kills. A leader that is just being made has no group
# yet, and what it inherits may swallow the signal, so it is asked again.
_END = """\
end() {{
    X=0
    until kill -TERM -"$1"; do
        kill -TERM "$1" && test "$X" -lt "$2" || return 0
        sleep 1
        X=$((X + 1))
    done
    while test "$X" -lt "$2" && kill -0 -"$1"; do
        sleep 1
        X=$((X + 1))
    done
    kill -KILL -"$1"
}} 2>/dev/null
"""

# Every section is a process group of its own: what it leaves behind when its time is up is found
# and ended, also where `timeout` ends one process alone (busybox) or is content when its child has
# ended (GNU). GNU's makes the group itself. A leader that writes into a connection that has gone
# ends by SIGPIPE (141), before anybody could tell it to end with its group.
_JOB = (
    """\
R=${{{mock_root}-}}
export R
N={nonce}
H=
T=
case $(timeout --version 2>/dev/null) in *GNU*) S= ;; *) S=setsid ;; esac
"""
    + _END
    + """\
trap 'trap "" TERM HUP INT; test -z "$T" || end "$!" {patience}; exit 143' TERM HUP INT
run() {{
    test -z "$3" || test -z "$H" || return 0
    printf '%s begin %s\\n' "$N" "$1"
    if test -n "$4"; then exec 4>&1; else exec 4>&2; fi
    T=1
    if test -n "$6"; then
        printf '%s' "$5" | $S timeout -k {patience} "$2" sh -s 2>&4 4>&- &
    else
        $S timeout -k {patience} "$2" sh -c "$5" </dev/null 2>&4 4>&- &
    fi
    wait "$!"
    E=$?
    case $E in 124 | 137 | 141 | 143) end "$!" {patience} ;; esac
    T=
    test -z "$3" || test "$E" = 0 || H=1
    printf '%s end %s %s\\n' "$N" "$1" "$E"
}}
{calls}
printf '%s done\\n' "$N"
"""
)

# The job lives in a session of its own, too. When the connection goes, standard input ends, and the
# job is ended with it: OpenSSH without a terminal would let it run on. `read` is a builtin, so no
# stray child keeps the channel open.
_LIFELINE = (
    _END
    + """\
C=
trap 'C=1' TERM HUP INT
{{ while read -r X <&3; do :; done; kill -TERM $$; }} >/dev/null 2>&1 &
L=$!
exec 3<&-
wait "$J"
E=$?
test -z "$C" && test "$E" -ne 141 || end "$J" {long_patience}
kill -KILL "$L" 2>/dev/null
exit "$E"
"""
)
_SMALL = "exec 3<&0 </dev/null\nsetsid sh -c {job} 3<&- &\nJ=$!\n" + _LIFELINE
_LARGE = (
    "exec 3<&0 </dev/null\nJOB=$(head -c {size} <&3)\nprintf '%s\\n' \"$JOB\" | setsid sh -s 3<&- &\nJ=$!\n"
    + _LIFELINE
)


def job(sections: Sequence[Section], nonce: str) -> str:
    """The whole text of an exchange: every section in order, its output between marks that hold `nonce`."""
    calls = "\n".join(_call(section) for section in sections)
    return _JOB.format(mock_root=MOCK_ROOT_VARIABLE, nonce=nonce, patience=PATIENCE_S, calls=calls)


def _call(section: Section) -> str:
    body = section_text(section)
    large = (
        section.body.has_secret
        or len(body.encode("utf-8", "surrogateescape")) > ARGUMENT_LIMIT_BYTES
    )
    if large:  # fed on the standard input of its shell, which its commands must not read
        body = "{\n" + body + "} </dev/null\n"
    flags = ["1" if flag else "" for flag in (section.gate, section.merge)]
    words = ("run", section.key, duration(section.timeout_s), *flags, body, "1" if large else "")
    return " ".join(quote(word) for word in words)


def duration(seconds: float) -> str:
    """Seconds as `timeout` and `sleep` read them: digits, never an exponent."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def section_text(section: Section) -> str:
    """What the section's own shell runs."""
    return ("set -eu\n" if section.strict else "set -u\n") + section.body.render()


def wrap(text: str, *, become: str = "none", secret: bool = False) -> tuple[str, bytes]:
    """A job as the command line of a channel and what is sent on its standard input.

    Small jobs travel as the argument of the exec request (two round trips on the wire), large ones
    on standard input (three), and so do those with a `secret`. The whole runs under one `sudo -n`
    where `become` is "sudo".
    """
    if not secret and len(text) <= ARGUMENT_LIMIT_BYTES:
        small = _shell(_SMALL.format(job=quote(text), long_patience=2 * PATIENCE_S), become)
        if len(small.encode("utf-8", "surrogateescape")) <= ARGUMENT_LIMIT_BYTES:
            return small, b""
    data = (
        b"{\n" + text.encode("utf-8", "surrogateescape") + b"\n}\n"
    )  # half of it is a syntax error, not half a job
    return _shell(_LARGE.format(size=len(data), long_patience=2 * PATIENCE_S), become), data


def _shell(text: str, become: str) -> str:
    return ("exec sudo -n " if become == "sudo" else "exec ") + "sh -c " + quote(text)


_PLAIN_HEADER = "R=${{{mock_root}-}}\nexport R\n"


def lifeline(body: Script, *, become: str = "none") -> tuple[str, bytes]:
    """One unframed script with a lifeline: its output and status are the channel's own."""
    return wrap(
        _PLAIN_HEADER.format(mock_root=MOCK_ROOT_VARIABLE) + "set -u\n" + body.render(),
        become=become,
        secret=body.has_secret,
    )


def fed(body: Script, *, become: str = "none") -> str:
    """The command line for a script that itself reads standard input (a tar stream), so without a lifeline."""
    return _shell(
        _PLAIN_HEADER.format(mock_root=MOCK_ROOT_VARIABLE) + "set -eu\n" + body.render(), become
    )


def fields(text: str) -> Mapping[str, str]:
    """`key=value` lines as a mapping; lines without `=` are left out, the last of a repeated key wins."""
    pairs = (line.split("=", 1) for line in text.split("\n") if "=" in line)
    return {key.strip(): value for key, value in pairs}
