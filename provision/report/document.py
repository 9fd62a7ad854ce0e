"""A run as the JSON document that scripts rely on. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provision.core.errors import ProvisionError
from provision.core.model import HostReport, Outcome, RunFinished, Status


def hosts_document(run: RunFinished) -> dict[str, Any]:
    """`{"hosts": {NAME: {ok, changed, failed, skipped, unknown, round_trips, seconds, results}}}`.

    Beside it, where they apply: `error` (the first failure), `not_started` (names), `interrupted`.
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
    """One host's part of the document; `error` stands in it when the host itself failed. Times are seconds."""
    document: dict[str, Any] = {status.value: report.count(status) for status in Status}
    document |= {"round_trips": report.round_trips, "seconds": round(report.seconds, 3)}
    document["results"] = [outcome_document(outcome) for outcome in report.outcomes]
    if report.error is not None:
        document["error"] = report.error.as_dict()
    return document


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """One resource's part: its status, and what differed as a list of {key, actual, desired} (null where nothing did)."""
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
