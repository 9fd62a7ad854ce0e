"""Subscribers of the engine's events: what people see while a run works and when it ends, and the document scripts read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TextIO

from provision.core.model import Emit, Event
from provision.report.document import hosts_document
from provision.report.lines import LineReporter

__all__ = ["LineReporter", "fan_out", "hosts_document", "reporter"]


def reporter(
    stream: TextIO,
    *,
    title: str = "",
    diff: bool = False,
    brief: bool = False,
    plain: bool = False,
    program: str = "invoke",
    env: Mapping[str, str] | None = None,
) -> LineReporter:
    """The reporter that suits `stream`: live on a terminal, lines elsewhere and wherever `plain` asks for them.

    `title` names the task that works while no host does. With `brief`, only what changed or failed
    is said. `program` is how the user calls us.
    """
    term = (os.environ if env is None else env).get("TERM", "")
    if plain or not stream.isatty() or term in {"", "dumb"}:
        return LineReporter(stream, diff=diff, brief=brief, program=program)
    from provision.report.terminal import LiveReporter

    return LiveReporter(stream, title=title, diff=diff, brief=brief, program=program)


def fan_out(*subscribers: Callable[[Event], object]) -> Emit:
    """One `emit` that hands each event to all subscribers, in their order."""

    def emit(event: Event) -> None:
        for subscriber in subscribers:
            subscriber(event)

    return emit
