"""Reading the answer of an exchange: a stream of bytes cut into frames, and output cut into lines. Pure.

`provision.core.shell.job` writes the marks. A mark holds a nonce and may stand anywhere: if it
began with a line end, the end of every line would be held back until more came, as the possible
beginning of a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar


@dataclass(frozen=True)
class Begin:
    """A section began."""

    key: str


@dataclass(frozen=True)
class Chunk:
    """Bytes that the running section printed."""

    key: str
    data: bytes


@dataclass(frozen=True)
class End:
    """A section ended with this status."""

    key: str
    status: int


@dataclass(frozen=True)
class Done:
    """The job reached its end."""


Frame: TypeAlias = Begin | Chunk | End | Done


Read = TypeVar("Read")


class MarkReader(Generic[Read]):
    """Cuts a stream of bytes, in whatever pieces it arrives, into marks and what lies between them.

    A mark begins with the nonce, wherever that stands, and goes on to the end of its line. `read`
    makes of its words what is handed on, or None where they say nothing: then it is output that
    looks like a mark.
    """

    def __init__(self, nonce: str, read: Callable[[Sequence[str]], Read | None]) -> None:
        self._mark = nonce.encode("ascii") + b" "
        self._read = read
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes | Read]:
        """What `data` completes. Never raises, whatever the bytes."""
        self._buffer += data
        while True:
            found = self._buffer.find(self._mark)
            if found < 0:
                yield from self._flush(len(self._buffer) - self._possible_mark())
                return
            end_of_line = self._buffer.find(b"\n", found + len(self._mark))
            yield from self._flush(found)
            if end_of_line < 0:
                return
            end_of_line -= found
            mark = self._read(
                self._buffer[len(self._mark) : end_of_line].decode("utf-8", "replace").split(" ")
            )
            if mark is None:
                yield from self._flush(len(self._mark))
                continue
            self._buffer = self._buffer[end_of_line + 1 :]
            yield mark

    def close(self) -> bytes:
        """What was held back as the possible beginning of a mark."""
        rest, self._buffer = self._buffer, b""
        return rest

    def _flush(self, size: int) -> Iterator[bytes]:
        chunk, self._buffer = self._buffer[:size], self._buffer[size:]
        if chunk:
            yield chunk

    def _possible_mark(self) -> int:
        """Length of the longest tail that could still grow into a mark."""
        start = max(0, len(self._buffer) - len(self._mark) + 1)
        for at in range(start, len(self._buffer)):
            if self._mark.startswith(self._buffer[at:]):
                return len(self._buffer) - at
        return 0


class FrameReader:
    """Cuts a stream of bytes, in whatever pieces it arrives, into frames. What precedes the first mark is dropped."""

    def __init__(self, nonce: str) -> None:
        self._marks: MarkReader[Begin | End | Done] = MarkReader(nonce, _frame)
        self._key: str | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes. Never raises, whatever the bytes."""
        for part in self._marks.feed(data):
            if not isinstance(part, bytes):
                self._key = part.key if isinstance(part, Begin) else None
                yield part
            elif self._key is not None:
                yield Chunk(self._key, part)


def _frame(words: Sequence[str]) -> Begin | End | Done | None:
    match words:
        case ["begin", key]:
            return Begin(key)
        case ["end", key, status] if status.isascii() and status.isdigit() and len(status) <= 3:
            return End(key, int(status))
        case ["done"]:
            return Done()
        case _:
            return None


class LineSplitter:
    """Turns chunks of bytes into lines of text; a carriage return ends a line too, as progress bars use it."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self._line = line
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Hand on every line that `data` completes. What is left of a long line is joined once, when it ends."""
        if self._rest and self._rest[-1].endswith(b"\r"):  # may be half of a line end
            data = self._rest.pop() + data
        first, *others = re.split(rb"\r\n|\n|\r(?!\Z)", data)
        self._rest.append(first)
        for rest in others:
            self._hand_on(b"".join(self._rest))
            self._rest = [rest]

    def close(self) -> None:
        """Hand on what is left without a line end."""
        if rest := b"".join(self._rest).rstrip(b"\r"):
            self._hand_on(rest)
        self._rest = []

    def _hand_on(self, line: bytes) -> None:
        self._line(line.decode("utf-8", "replace"))
