"""What programs that run at once print: apart on the way, whatever it is, and line by line at the end."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

from provision.core.frames import Chunk, FrameReader, SectionBegin, SectionEnd
from provision.core.model import Sink

_LINE_END = re.compile(rb"(\r\n|\n|\r)")
_LONGEST_LINE_BYTES = 16 * 2**20
"""A line that does not end is handed on from this size on, as memory has an end too."""


def pieces(mark: str, hear: Callable[[str, bytes], None]) -> Sink:
    """Takes what comes over the channel, and gives `hear` each stream's key and bytes; none where the stream has ended."""
    reader = FrameReader(mark)
    text = bytearray()

    def take(data: bytes) -> None:
        for frame in reader.feed(data):
            match frame:
                case SectionBegin():
                    text.clear()
                case Chunk(_, part):
                    text.extend(part)
                case SectionEnd(key, _):
                    hear(key, base64.b64decode(text))

    return take


class Lines:
    """One stream of one program, each line with the program's number in front, whole lines at a time.

    A carriage return ends a line too. One that came after a carriage return is handed on as it
    comes: a progress bar writes its end when it has something new.
    """

    def __init__(self, number: int, sink: Sink) -> None:
        self._front = f"[{number}] ".encode()
        self._sink = sink
        self._line = bytearray()
        self._returned = False
        """A carriage return was the last line end."""
        self._told = False
        """Something of the line that a carriage return left was handed on: a line end that follows
        says nothing new."""

    def __call__(self, data: bytes) -> None:
        """Take some bytes, in whatever pieces they come."""
        said = bytearray()
        *ended, rest = _LINE_END.split(data)
        for text, end in zip(ended[::2], ended[1::2], strict=True):
            self._line += text
            if self._line or not (self._told or end == b"\r"):
                self._tell(said)
            self._returned = end == b"\r"
            self._told = self._told and self._returned
        self._line += rest
        if self._line and (self._returned or len(self._line) > _LONGEST_LINE_BYTES):
            self._tell(said)
        if said:
            self._sink(bytes(said))

    def close(self) -> None:
        """Hand on what came without a line end."""
        if self._line:
            self(b"\n")

    def _tell(self, said: bytearray) -> None:
        said += self._front + self._line + b"\n"
        self._line.clear()
        self._told = True
