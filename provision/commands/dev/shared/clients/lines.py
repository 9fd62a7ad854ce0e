"""Lines of one of several programs, each with the program's number in front."""

from __future__ import annotations

import re

from provision.core.model import Sink

_LINE_END = re.compile(rb"(\r\n|\n|\r)")
_LONGEST_LINE_BYTES = 16 * 2**20
"""A line without an end is forwarded from this size on, so that it does not fill the memory."""


class NumberedLines:
    """Forwards one stream of one program as whole lines, each with the program's number in front.

    A carriage return ends a line, too. What follows a carriage return is forwarded as it comes,
    since a progress bar writes its line end only with the next state.
    """

    def __init__(self, number: int, sink: Sink) -> None:
        self._prefix = f"[{number}] ".encode()
        self._sink = sink
        self._line = bytearray()
        self._after_return = False
        """The last line end was a carriage return."""
        self._forwarded = False
        """The current line was forwarded at least in part: its line end brings nothing new."""

    def __call__(self, data: bytes) -> None:
        """Buffer the bytes and forward the lines that they complete."""
        output = bytearray()
        *ended, rest = _LINE_END.split(data)
        for text, end in zip(ended[::2], ended[1::2], strict=True):
            self._line += text
            if self._line or not (self._forwarded or end == b"\r"):
                self._move_line(output)
            self._after_return = end == b"\r"
            self._forwarded = self._forwarded and self._after_return
        self._line += rest
        if self._line and (self._after_return or len(self._line) > _LONGEST_LINE_BYTES):
            self._move_line(output)
        if output:
            self._sink(bytes(output))

    def close(self) -> None:
        """Forward what is left without a line end."""
        if self._line:
            self(b"\n")

    def _move_line(self, output: bytearray) -> None:
        output += self._prefix + self._line + b"\n"
        self._line.clear()
        self._forwarded = True
