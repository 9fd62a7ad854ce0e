"""The result of several programs at once: a record of each, the document, the table. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provision.commands.shared.result import TaskResult
from provision.core.errors import Interrupted

_KILLED = 137
"""The status of a program that was killed."""


@dataclass
class Client:
    """One of the programs. A value that was not received is None."""

    number: int
    container: str = ""
    started: int | None = None
    """Seconds since 1970."""
    began_s: float | None = None
    """Seconds since the start of the machine."""
    ended_s: float | None = None
    """Seconds since the start of the machine."""
    status: int | None = None

    @property
    def seconds(self) -> float | None:
        """How long it ran."""
        if self.began_s is None or self.ended_s is None:
            return None
        return round(self.ended_s - self.began_s, 2)

    def as_dict(self) -> dict[str, object]:
        """The client as `--json` prints it."""
        started = None if self.started is None else time.gmtime(self.started)
        return {
            "client": self.number,
            "container": self.container,
            "started": None if started is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", started),
            "seconds": self.seconds,
            "status": self.status,
        }


def clients_result(clients: Sequence[Client]) -> TaskResult:
    """The result after all clients ended; a client that reported no status was killed.

    The exit code is the worst status.
    """
    for client in clients:
        client.status = _KILLED if client.status is None else client.status
    worst = max(client.status or 0 for client in clients)
    makespan = _makespan_s(clients)
    failed = sum(bool(client.status) for client in clients)
    summary = (
        f"all of them took {makespan:.2f} s"
        if makespan is not None
        else "none of them reported its end"
    )
    if failed:
        summary += f", {failed} failed"
    document = {**_document(clients), "status": worst, "failed_in": "program" if worst else None}
    return TaskResult(document, worst, "\n".join([*table_lines(clients), summary]))


def interrupted_result(clients: Sequence[Client]) -> TaskResult:
    """The result after Ctrl-C; a client without a status was ended by it."""
    ended = sum(client.status is not None for client in clients)
    error = Interrupted("interrupted", why=f"{ended} of {len(clients)} had ended")
    document = {
        **_document(clients),
        "status": None,
        "failed_in": "provision",
        "error": error.as_dict(),
    }
    table = table_lines(clients, unfinished="interrupted")
    # The table begins below the line in which the terminal shows ^C.
    lines = ["", *table, f"interrupted: {error.why}, the others were ended"]
    return TaskResult(document, error.exit_code, "\n".join(lines))


def _makespan_s(clients: Sequence[Client]) -> float | None:
    """Seconds from the first begin to the last end that were reported."""
    ends = [client.ended_s for client in clients if client.ended_s is not None]
    begins = [client.began_s for client in clients if client.began_s is not None]
    return round(max(ends) - min(begins), 2) if ends and begins else None


def _document(clients: Sequence[Client]) -> dict[str, Any]:
    return {"seconds": _makespan_s(clients), "clients": [client.as_dict() for client in clients]}


def table_lines(clients: Sequence[Client], *, unfinished: str = "") -> list[str]:
    """A heading and a line for each client; `unfinished` is the status of one without an end."""
    container_width = max(9, *(len(client.container) for client in clients))
    statuses = [_status_text(client, unfinished) for client in clients]
    status_width = max(6, *map(len, statuses))
    lines = [
        f"client  {'container':<{container_width}}  started   seconds  {'status':>{status_width}}"
    ]
    for client, status in zip(clients, statuses, strict=True):
        seconds = "-" if client.seconds is None else f"{client.seconds:.2f}"
        started = "-" if client.started is None else clock_text(client.started)
        container = f"{client.container or '-':<{container_width}}"
        lines.append(
            f"{client.number:>6}  {container}  {started:<8}  {seconds:>7}  {status:>{status_width}}"
        )
    return lines


def _status_text(client: Client, unfinished: str) -> str:
    if client.status is not None:
        return str(client.status)
    return "not started" if client.began_s is None else unfinished


def clock_text(seconds: int) -> str:
    """Seconds since 1970 as the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))
