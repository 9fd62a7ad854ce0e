"""The output of several programs on one channel: numbered lines, begin and end of each."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from provision.commands.dev.shared.clients.lines import NumberedLines
from provision.commands.dev.shared.clients.result import Client, clock_text
from provision.core.frames import Chunk, FrameReader, MarkReader, SectionBegin, SectionEnd
from provision.core.model import Sink


def mark_of(token: str) -> str:
    """The mark of the frames of a run, and of the begin and the end of its programs."""
    return f":{token}:"


class ClientsOutput:
    """Forwards the lines of all programs, and records begin and end of each in `clients`."""

    def __init__(self, token: str, count: int, stdout: Sink, stderr: Sink) -> None:
        self.clients = [Client(number) for number in range(1, count + 1)]
        mark = mark_of(token)
        self._streams: dict[str, NumberedLines | ClientStderr] = {}
        for client in self.clients:
            self._streams[f"{client.number}.out"] = NumberedLines(client.number, stdout)
            self._streams[f"{client.number}.err"] = ClientStderr(client, mark, stderr)
        self._read = piece_reader(mark, self._forward)

    def __call__(self, data: bytes) -> None:
        """Process bytes that arrived on the channel."""
        self._read(data)

    def _forward(self, key: str, data: bytes) -> None:
        stream = self._streams[key]
        if data:
            stream(data)
        else:
            stream.close()

    def close(self) -> None:
        """Forward what is left without a line end."""
        for stream in self._streams.values():
            stream.close()


def piece_reader(mark: str, on_piece: Callable[[str, bytes], None]) -> Sink:
    """A sink for the bytes of the channel that calls `on_piece` with each stream's key and bytes.

    The bytes are empty at the end of a stream.
    """
    reader = FrameReader(mark)
    text = bytearray()

    def read(data: bytes) -> None:
        for frame in reader.feed(data):
            match frame:
                case SectionBegin():
                    text.clear()
                case Chunk(_, part):
                    text.extend(part)
                case SectionEnd(key, _):
                    on_piece(key, base64.b64decode(text))

    return read


class ClientStderr:
    """Forwards one program's standard error, and records the marks of client.sh in it."""

    def __init__(self, client: Client, mark: str, sink: Sink) -> None:
        self._client = client
        self._sink = sink
        self._lines = NumberedLines(client.number, sink)
        self._marks = MarkReader(mark, _known_mark)

    def __call__(self, data: bytes) -> None:
        """Process bytes of the program's standard error."""
        for part in self._marks.feed(data):
            if isinstance(part, bytes):
                self._lines(part)
            else:
                self._lines.close()
                self._sink(f"[{self._client.number}] {self._record(*part)}\n".encode())

    def _record(self, event: str, *words: str) -> str:
        """Record begin or end of the program; the line that reports it."""
        client = self._client
        if event == "begin":
            client.started, client.began_s, client.container = (
                int(words[0]),
                float(words[1]),
                words[2],
            )
            return f"starts {clock_text(client.started)}"
        client.ended_s, client.status = float(words[0]), int(words[1])
        return f"ends after {client.seconds:.2f} s, status {client.status}"

    def close(self) -> None:
        """Forward what is left without a line end."""
        self._lines(self._marks.close())
        self._lines.close()


def _known_mark(words: Sequence[str]) -> Sequence[str] | None:
    return words if (words[0], len(words)) in {("begin", 4), ("end", 3)} else None
