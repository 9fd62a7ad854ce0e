"""The JSON document of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provision.core.errors import ProvisionError
from provision.core.model import HostReport, Outcome, RunFinished, Status


def hosts_document(run: RunFinished) -> dict[str, Any]:
    """`{"hosts": {NAME: {ok, changed, failed, skipped, unknown, round_trips, seconds, results}}}`.

    Where they apply it also holds `error` (the first failure), `not_started` (names of hosts) and
    `interrupted`.
    """
    document: dict[str, Any] = {
        "hosts": {report.host: host_document(report) for report in run.reports}
    }
    first = next(_errors(run), None)
    if first is not None:
        document["error"] = first.as_dict()
    if run.not_started:
        document["not_started"] = list(run.not_started)
    if run.interrupted:
        document["interrupted"] = True
    return document


def host_document(report: HostReport) -> dict[str, Any]:
    """The part of one host. It holds `error` when the host itself failed. Times are in seconds."""
    document: dict[str, Any] = {status.value: report.count(status) for status in Status}
    document |= {"round_trips": report.round_trips, "seconds": round(report.seconds, 3)}
    document["results"] = [outcome_document(outcome) for outcome in report.outcomes]
    if report.error is not None:
        document["error"] = report.error.as_dict()
    return document


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """The part of one resource. `diff` is a list of {key, actual, desired}, null when empty."""
    diff = [
        {"key": change.key, "actual": change.actual, "desired": change.desired}
        for change in outcome.diff
    ]
    document: dict[str, Any] = {
        "resource": outcome.resource,
        "status": outcome.status.value,
        "diff": diff or None,
    }
    document["seconds"] = round(outcome.seconds, 3)
    if outcome.note:
        document["note"] = outcome.note
    if outcome.error is not None:
        document["error"] = outcome.error.as_dict()
    return document


def _errors(run: RunFinished) -> Iterator[ProvisionError]:
    for report in run.reports:
        if report.error is not None:
            yield report.error
        yield from (outcome.error for outcome in report.outcomes if outcome.error is not None)
