"""The end of a run: the recap of each host, and every failure in full. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.core import durations
from provision.core.errors import ProvisionError, with_program
from provision.core.model import HostReport, RunFinished, Status
from provision.report.text import STATUS_STYLE, Line, Span, clean, count_phrase

_INTERRUPTED = (
    "interrupted: an unfinished change is unknown; run the same command again, it continues there"
)
_HOSTS_SHOWN = 6


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
    return f"check: {total} would change on {count_phrase(hosts, 'host')}; nothing was changed"


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
