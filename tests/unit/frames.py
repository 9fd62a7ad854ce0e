"""Readers of framed output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from provision.core.frames import Chunk, FrameReader, JobEnd, SectionBegin, SectionEnd


@dataclass
class ReceivedSection:
    """The output and status of a section; None for one that did not end."""

    data: bytes = b""
    status: int | None = None

    @property
    def output(self) -> str:
        return self.data.decode("utf-8", "replace")


def read_sections(nonce: str, chunks: Iterable[bytes]) -> tuple[dict[str, ReceivedSection], bool]:
    """The sections by key, and whether the job reached its end."""
    reader = FrameReader(nonce)
    sections: dict[str, ReceivedSection] = {}
    done = False
    for chunk in chunks:
        for frame in reader.feed(chunk):
            match frame:
                case SectionBegin(key):
                    sections[key] = ReceivedSection()
                case Chunk(key, data):
                    sections[key].data += data
                case SectionEnd(key, status):
                    sections[key].status = status
                case JobEnd():
                    done = True
    return sections, done


def complete_sections(nonce: str, output: bytes) -> dict[str, ReceivedSection]:
    """The sections of a job, which must have reached its end."""
    sections, done = read_sections(nonce, [output])
    assert done, output.decode("utf-8", "replace")
    return sections
