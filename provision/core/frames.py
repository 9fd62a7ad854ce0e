"""The output of a job, read as it arrives: bytes into frames, and output into lines. Pure.

`provision.core.job` prints the marks. A mark holds a nonce and may begin in the
middle of a line, since the output of a section may end without a line end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar


@dataclass(frozen=True)
class SectionBegin:
    """A section began."""

    key: str


@dataclass(frozen=True)
class Chunk:
    """Bytes that the running section printed."""

    key: str
    data: bytes


@dataclass(frozen=True)
class SectionEnd:
    """A section ended with this status."""

    key: str
    status: int


@dataclass(frozen=True)
class JobEnd:
    """The last section of the job has ended."""


Frame: TypeAlias = SectionBegin | Chunk | SectionEnd | JobEnd


Mark = TypeVar("Mark")


class MarkReader(Generic[Mark]):
    """Splits a stream of bytes into marks and the output between them.

    A mark begins with the nonce, anywhere in a line, and ends with that line. `read` turns the
    words of a mark into a value. Where it returns None, the text is output that looks like a mark.
    """

    def __init__(self, nonce: str, read: Callable[[Sequence[str]], Mark | None]) -> None:
        self._prefix = nonce.encode("ascii") + b" "
        self._read = read
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes | Mark]:
        """Yield the marks and the output that `data` completes. Accepts any bytes."""
        self._buffer += data
        while True:
            start = self._buffer.find(self._prefix)
            if start < 0:
                yield from self._flush(len(self._buffer) - self._possible_prefix())
                return
            yield from self._flush(start)
            text, line_end, rest = self._buffer[len(self._prefix) :].partition(b"\n")
            if not line_end:
                return
            mark = self._read(text.decode("utf-8", "replace").split(" "))
            if mark is None:
                yield from self._flush(len(self._prefix))
            else:
                self._buffer = rest
                yield mark

    def close(self) -> bytes:
        """Return what was held back as the possible beginning of a mark."""
        rest, self._buffer = self._buffer, b""
        return rest

    def _flush(self, size: int) -> Iterator[bytes]:
        chunk, self._buffer = self._buffer[:size], self._buffer[size:]
        if chunk:
            yield chunk

    def _possible_prefix(self) -> int:
        """The length of the longest end of the buffer with which a mark may begin."""
        start = max(0, len(self._buffer) - len(self._prefix) + 1)
        for at in range(start, len(self._buffer)):
            if self._prefix.startswith(self._buffer[at:]):
                return len(self._buffer) - at
        return 0


class FrameReader:
    """Splits the output of a job into frames. What precedes the first mark is dropped."""

    def __init__(self, nonce: str) -> None:
        self._marks: MarkReader[SectionBegin | SectionEnd | JobEnd] = MarkReader(nonce, _frame)
        self._key: str | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes. Accepts any bytes."""
        for part in self._marks.feed(data):
            if not isinstance(part, bytes):
                self._key = part.key if isinstance(part, SectionBegin) else None
                yield part
            elif self._key is not None:
                yield Chunk(self._key, part)


def _frame(words: Sequence[str]) -> SectionBegin | SectionEnd | JobEnd | None:
    match words:
        case ["begin", key]:
            return SectionBegin(key)
        case ["end", key, status] if status.isascii() and status.isdigit() and len(status) <= 3:
            return SectionEnd(key, int(status))
        case ["done"]:
            return JobEnd()
        case _:
            return None


class LineSplitter:
    """Calls `on_line` with each line of a stream of bytes.

    A carriage return ends a line as well, since progress bars use it.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Report every line that `data` completes. The pieces of a long line are joined once."""
        if self._pieces and self._pieces[-1].endswith(b"\r"):  # may be half of a line end
            data = self._pieces.pop() + data
        first, *others = re.split(rb"\r\n|\n|\r(?!\Z)", data)
        self._pieces.append(first)
        for piece in others:
            self._report(b"".join(self._pieces))
            self._pieces = [piece]

    def close(self) -> None:
        """Report what is left without a line end."""
        if rest := b"".join(self._pieces).rstrip(b"\r"):
            self._report(rest)
        self._pieces = []

    def _report(self, line: bytes) -> None:
        self._on_line(line.decode("utf-8", "replace"))
