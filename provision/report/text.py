"""Events as lines of styled text for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from provision.core import durations
from provision.core.errors import ProvisionError, with_program
from provision.core.model import HostReport, Outcome, RunFinished, Status
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
_INTERRUPTED = (
    "interrupted: an unfinished change is unknown; run the same command again, it continues there"
)
_KEYS_SHOWN = 4
_HOSTS_SHOWN = 6


def plain(line: Line) -> str:
    """The line without styles."""
    return "".join(text for text, _ in line).rstrip()


def counted(count: int, one: str, many: str = "") -> str:
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


# --- the end of a run -----------------------------------------------------------------------------


def recap(run: RunFinished, *, check: bool, program: str = "invoke") -> list[Line]:
    """An aligned line for each host, hosts that were not started, and every failure in full."""
    names = [*(report.host for report in run.reports), *run.not_started]
    width = max(map(len, names), default=0)
    digits = {
        status: max((len(str(report.count(status))) for report in run.reports), default=1)
        for status in Status
    }
    times = max((len(durations.measured(report.seconds)) for report in run.reports), default=0)
    lines = [_recap_line(report, width, digits, times) for report in run.reports]
    lines += [
        ((name.ljust(width), "strong"), ("  not started", "warn")) for name in run.not_started
    ]
    if check:
        lines += [((_check_verdict(run.reports), "strong"),)]
    if run.interrupted:
        lines += [((_INTERRUPTED, "warn"),)]
    return lines + failures(run.reports, program)


def _recap_line(report: HostReport, width: int, digits: dict[Status, int], times: int) -> Line:
    spans: list[Span] = [
        (report.host.ljust(width), "bad" if report.failed else "strong"),
        (" ", ""),
    ]
    for status in Status:
        count = report.count(status)
        cell = f"{status}={count}".ljust(len(status) + 1 + digits[status])
        spans += [(" ", ""), (cell, STATUS_STYLE[status] if count else "faint")]
    spans.append((f"  {durations.measured(report.seconds).rjust(times)}", ""))
    if report.error is not None:
        spans.append((f"  {report.error.what}", "bad"))
    return tuple(spans)


def _check_verdict(reports: Iterable[HostReport]) -> str:
    counts = [report.count(Status.CHANGED) for report in reports]
    total, hosts = sum(counts), sum(count > 0 for count in counts)
    if not total:
        return "check: nothing would change"
    return f"check: {total} would change on {counted(hosts, 'host')}; nothing was changed"


def failures(reports: Iterable[HostReport], program: str = "invoke") -> list[Line]:
    """Every failure in its three lines; one of several hosts once, with their names."""
    groups: dict[tuple[str, str, str], list[ProvisionError]] = {}
    for report in reports:
        for error in [report.error, *(outcome.error for outcome in report.outcomes)]:
            if error is not None:
                why, fix = (text.replace(report.host, "HOST") for text in (error.why, error.fix))
                group = groups.setdefault((error.what, why, fix), [])
                if not any(error.where == other.where for other in group):
                    group.append(error)
    lines: list[Line] = []
    for errors in groups.values():
        lines += [((" ", ""),), *_failure_lines(errors, program)]
    return lines


def _failure_lines(errors: Sequence[ProvisionError], program: str) -> list[Line]:
    first = errors[0]
    head = _origins([error.where for error in errors if error.where])
    lines: list[Line] = [
        (("failed ", "bad"), (f"{head}: " if head else "", "strong"), (clean(first.what), ""))
    ]
    for label, text in (("why", first.why), ("try", with_program(first.fix, program))):
        for index, row in enumerate(text.rstrip().split("\n") if text else []):
            lines.append(((f"  {label}: " if index == 0 else "       ", "faint"), (clean(row), "")))
    return lines


def _origins(origins: Sequence[str]) -> str:
    """Where a failure occurred: `web-1: driver`, or `web-1, web-2 and 9 more: driver`."""
    shown = list(origins[:_HOSTS_SHOWN])
    resources = {origin.partition(": ")[2] for origin in shown}
    resource = ""
    if len(shown) > 1 and len(resources) == 1:
        shown = [origin.partition(": ")[0] for origin in shown]
        resource = "".join(f": {name}" for name in resources if name)
    more = f" and {len(origins) - _HOSTS_SHOWN} more" if len(origins) > _HOSTS_SHOWN else ""
    return ", ".join(shown) + more + resource
