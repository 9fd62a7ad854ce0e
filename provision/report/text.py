"""Events as lines of styled text for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from provision.core import durations
from provision.core.errors import with_program
from provision.core.model import Outcome, Status
from provision.core.resource import describe

Style: TypeAlias = Literal["", "faint", "good", "changed", "bad", "warn", "strong"]
Span: TypeAlias = tuple[str, Style]
Line: TypeAlias = tuple[Span, ...]

STATUS_STYLE: dict[Status, Style] = {
    Status.OK: "good",
    Status.CHANGED: "changed",
    Status.FAILED: "bad",
    Status.SKIPPED: "warn",
    Status.UNKNOWN: "warn",
}
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_KEYS_SHOWN = 4


def plain(line: Line) -> str:
    """The line without styles."""
    return "".join(text for text, _ in line).rstrip()


def count_phrase(count: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 host`, `3 hosts`. `many` is a plural other than with an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def clean(text: str) -> str:
    """A line of output without control sequences, in its last state before a carriage return."""
    visible = _ESCAPES.sub("", text)
    states = [state for state in visible.replace("\n", " ").split("\r") if state.strip()]
    return _CONTROLS.sub("", (states[-1] if states else "").expandtabs()).rstrip()


@dataclass
class Columns:
    """Widths of the columns for host and resource, which grow with the texts in them."""

    host: int = 0
    resource: int = 14

    def prefix(self, host: str, resource: str = "") -> Line:
        """The columns as `host | resource | `, or `host | ` without resource."""
        self.host = max(self.host, len(host))
        head: Line = ((host.ljust(self.host), "strong"), (" | ", "faint"))
        if not resource:
            return head
        self.resource = max(self.resource, min(len(resource), 32))
        return (*head, (resource.ljust(self.resource), ""), (" | ", "faint"))


def outcome_line(outcome: Outcome, *, check: bool, program: str) -> Line:
    """How a resource ended, such as `changed  12.3 s` or `failed: did not converge`."""
    word = "would change" if check and outcome.status is Status.CHANGED else outcome.status.value
    why = ""
    if outcome.error is not None:
        why = outcome.error.what
    elif outcome.note:
        why = with_program(outcome.note, program)
    elif outcome.status is Status.CHANGED:
        why = _keys([change.key for change in outcome.diff])
    time = f"  {durations.measured(outcome.seconds)}" if outcome.seconds >= 0.005 else ""
    return (
        (word, STATUS_STYLE[outcome.status]),
        (f": {clean(why)}" if why else "", ""),
        (time, "faint"),
    )


def _keys(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _KEYS_SHOWN} more" if len(keys) > _KEYS_SHOWN else ""
    return ", ".join(keys[:_KEYS_SHOWN]) + more


def diff_lines(outcome: Outcome) -> list[Line]:
    """The differences: `key: actual -> desired`, or a unified diff of a text of several lines."""
    return [
        ((f"  {clean(text)}", _diff_style(text)),)
        for change in outcome.diff
        for text in describe(change)
    ]


def _diff_style(text: str) -> Style:
    if text.startswith(("+++", "---", "@@")):
        return "faint"
    if text.startswith("+"):
        return "good"
    return "bad" if text.startswith("-") else ""
