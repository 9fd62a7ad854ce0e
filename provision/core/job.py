"""Jobs: the text of one exchange, and the command line by which a script reaches a host. Pure.

A job is a list of sections. Each section runs in a shell of its own under `timeout -k`, between two
marks that begin with the job's nonce, so that what a login shell prints first is not read as output
of a section. `provision.core.frames` reads the marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.core.shell import ARGUMENT_LIMIT_BYTES, MOCK_ROOT_VARIABLE, Script, quote, script

HERE = Path(__file__).parent
PATIENCE_S = 10
"""Seconds in which processes may end after SIGTERM before they are killed."""
_ROOT = f"R=${{{MOCK_ROOT_VARIABLE}-}}\nexport R\n"


@dataclass(frozen=True)
class Section:
    """One script of an exchange.

    `merge` sends standard error where standard output goes, so that people see both in order. A
    `gate` section is skipped once an earlier gate section has failed. `strict` runs the script
    under `set -e`.
    """

    key: str
    body: Script
    timeout_s: float
    merge: bool = False
    gate: bool = False
    strict: bool = False


def section_text(section: Section) -> str:
    """The text that the section's own shell runs."""
    return ("set -eu\n" if section.strict else "set -u\n") + section.body.render()


def timeout_text(seconds: float) -> str:
    """Seconds as `timeout` and `sleep` read them: digits, never an exponent."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def job_text(sections: Sequence[Section], nonce: str) -> str:
    """The whole text of an exchange: every section in order, between marks that hold `nonce`."""
    functions = script(HERE / "job.sh", uses=["core/end_group.sh"], nonce=nonce, grace_s=PATIENCE_S)
    calls = [_call(section) for section in sections]
    return "\n".join([_ROOT + functions.render().rstrip("\n"), *calls, "finish\n"])


def _call(section: Section) -> str:
    body = section_text(section)
    by_stdin = section.body.has_secret or _size(body) > ARGUMENT_LIMIT_BYTES
    if by_stdin:  # its commands must not read the rest of it
        body = "{\n" + body + "} </dev/null\n"
    flags = (section.gate, section.merge)
    words = [timeout_text(section.timeout_s), *("1" if flag else "" for flag in flags), body]
    return " ".join(map(quote, ("run", section.key, *words, "1" if by_stdin else "")))


# --- how a script reaches a host ------------------------------------------------------------------


def job_command(
    sections: Sequence[Section], nonce: str, *, become: str = "none"
) -> tuple[str, bytes]:
    """An exchange as the command line of a channel and what is sent on its standard input.

    The whole runs under one `sudo -n` where `become` is "sudo". It ends when the connection does.
    """
    secret = any(section.body.has_secret for section in sections)
    return _with_lifeline(job_text(sections, nonce), become, secret=secret)


def script_command(body: Script, *, become: str = "none") -> tuple[str, bytes]:
    """One script without marks, as a command line and its standard input.

    Its output and its status are those of the channel. It ends when the connection does.
    """
    return _with_lifeline(_ROOT + "set -u\n" + body.render(), become, secret=body.has_secret)


def reading_command(body: Script, *, become: str = "none") -> str:
    """The command line of a script that reads standard input itself, such as a tar stream.

    It outlives the connection unless the end of its input ends it.
    """
    return _command_line(_ROOT + "set -eu\n" + body.render(), become)


def _with_lifeline(text: str, become: str, *, secret: bool) -> tuple[str, bytes]:
    """The command line and the standard input that run the job `text` under a lifeline.

    A small job is the argument of the exec request, which takes two round trips. A large job, or
    one with a secret, is on standard input, which takes three.
    """
    shared = ["core/end_group.sh", "core/hold.sh"]
    grace_s = 2 * PATIENCE_S
    if not secret and len(text) <= ARGUMENT_LIMIT_BYTES:
        small = script(HERE / "job_from_argument.sh", uses=shared, job=text, grace_s=grace_s)
        line = _command_line(small.render(), become)
        if _size(line) <= ARGUMENT_LIMIT_BYTES:
            return line, b""
    # The braces make half of a job a syntax error, not half of its commands.
    data = b"{\n" + text.encode("utf-8", "surrogateescape") + b"\n}\n"
    large = script(HERE / "job_from_stdin.sh", uses=shared, size=len(data), grace_s=grace_s)
    return _command_line(large.render(), become), data


def _command_line(text: str, become: str) -> str:
    return ("exec sudo -n " if become == "sudo" else "exec ") + "sh -c " + quote(text)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
