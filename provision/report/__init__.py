"""Subscribers of the events of a run: lines for people, the JSON document, the history."""

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
    """The reporter for `stream`: a live one on a terminal, lines elsewhere and with `plain`.

    `title` is the task, shown while no host is at work. With `brief` only changes and failures are
    reported. `program` is the name of the program in the commands that remedies name.
    """
    term = (os.environ if env is None else env).get("TERM", "")
    if plain or not stream.isatty() or term in {"", "dumb"}:
        return LineReporter(stream, diff=diff, brief=brief, program=program)
    from provision.report.terminal import LiveReporter

    return LiveReporter(stream, title=title, diff=diff, brief=brief, program=program)


def fan_out(*subscribers: Callable[[Event], object]) -> Emit:
    """A function that passes each event to all subscribers, in their order."""

    def emit(event: Event) -> None:
        for subscriber in subscribers:
            subscriber(event)

    return emit
