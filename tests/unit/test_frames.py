"""Frames and lines, read from bytes that arrive in any pieces."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core import frames
from provision.core.frames import Chunk, FrameReader, JobEnd, LineSplitter, SectionBegin, SectionEnd
from tests.unit.frames import read_sections

NONCE = ":0123456789abcdef:"
MARK = f"{NONCE} ".encode()
pieces = st.sampled_from(
    [
        b"\n",
        b"\n\n",
        b" ",
        MARK,
        b"\n" + MARK,
        MARK[1:],
        MARK[:-1],
        MARK[:5],
        MARK[5:],
        b"begin",
        b"end p0 0",
        b"done",
        b"\r",
        b"\xff",
        b"0",
        b":",
        b"x",
    ]
)
contents = st.lists(pieces | st.binary(max_size=8), max_size=12).map(b"".join)


def is_frame(line: bytes) -> bool:
    words = line.split(b"\n", 1)[0].split(b" ")
    begins = len(words) == 2 and words[0] == b"begin"
    ends = len(words) == 3 and words[0] == b"end" and words[2].isdigit() and len(words[2]) <= 3
    return begins or ends or words == [b"done"]


def has_a_frame(data: bytes) -> bool:
    """True when the output of a section contains a valid mark with the nonce of its exchange."""
    return any(is_frame(part) for part in (data + b"\n").split(MARK)[1:])


def framed(sections: Sequence[tuple[str, bytes, int]]) -> bytes:
    body = b"".join(
        f"{NONCE} begin {key}\n".encode() + data + f"{NONCE} end {key} {status}\n".encode()
        for key, data, status in sections
    )
    return body + f"{NONCE} done\n".encode()


def cut(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for size in itertools.cycle(sizes):
        if start >= len(data):
            return
        yield data[start : start + size]
        start += size


@given(
    st.lists(
        st.tuples(contents.filter(lambda data: not has_a_frame(data)), st.integers(0, 255)),
        max_size=4,
    ),
    contents.filter(lambda data: not has_a_frame(data)),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_frames_do_not_depend_on_how_bytes_arrive(
    sections: list[tuple[bytes, int]], noise: bytes, sizes: list[int]
) -> None:
    named = [(f"p{number}", data, status) for number, (data, status) in enumerate(sections)]
    found, done = read_sections(NONCE, cut(noise + framed(named), sizes))
    assert done
    assert [(key, section.data, section.status) for key, section in found.items()] == named


@given(contents | st.binary(), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_reader_accepts_any_bytes(data: bytes, sizes: list[int]) -> None:
    reader = FrameReader(NONCE)
    for piece in cut(data, sizes):
        list(reader.feed(piece))
    frames = list(reader.feed(f"{NONCE} done\n".encode()))
    assert frames[-1] == JobEnd()


def test_output_is_yielded_once_it_cannot_be_a_mark() -> None:
    reader = FrameReader(NONCE)
    assert list(reader.feed(MARK + b"begin a\nhalf a li")) == [
        SectionBegin("a"),
        Chunk("a", b"half a li"),
    ]
    assert list(reader.feed(b"ne\n")) == [Chunk("a", b"ne\n")]
    assert list(reader.feed(b"next:")) == [Chunk("a", b"next")]
    assert list(reader.feed(b" \n")) == [Chunk("a", b": \n")]
    assert list(reader.feed(MARK + b"end a 124\n" + MARK + b"done\n")) == [
        SectionEnd("a", 124),
        JobEnd(),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "end a x",
        "end a",
        "end a -1",
        "end a " + "9" * 5000,
        "begin",
        "begin a b",
        "other",
        "end a \u0663",
        "",
    ],
)
def test_invalid_mark_is_output(line: str) -> None:
    data = MARK + line.encode()
    sections, done = read_sections(NONCE, [framed([("a", data, 0)])])
    assert (sections["a"].data, sections["a"].status, done) == (data, 0, True)


# --- lines ----------------------------------------------------------------------------------------


@given(
    st.text(st.sampled_from("a\n\r"), max_size=12),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
def test_lines_do_not_depend_on_how_bytes_arrive(text: str, sizes: list[int]) -> None:
    def split(parts: Iterator[bytes]) -> list[str]:
        lines: list[str] = []
        splitter = LineSplitter(lines.append)
        for part in parts:
            splitter.feed(part)
        splitter.close()
        return lines

    assert split(cut(text.encode(), sizes)) == split(iter([text.encode()]))


def test_long_line_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    def split(pattern: bytes, data: bytes) -> list[bytes]:
        nonlocal looked_at
        looked_at += len(data)
        return re.split(pattern, data)

    monkeypatch.setattr(frames, "re", SimpleNamespace(split=split))
    lines: list[str] = []
    splitter = LineSplitter(lines.append)
    for _ in range(100):
        splitter.feed(b"x" * 10)
    splitter.close()
    assert (lines, looked_at) == (["x" * 1000], 1000)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b" 10%\r 20%\r100%\n", [" 10%", " 20%", "100%"]),
        (b"a\r", ["a"]),
        ("ü\xff".encode("latin-1"), ["\ufffd\ufffd"]),
        ("✓\n".encode(), ["✓"]),
    ],
)
def test_line_ends_are_recognised(data: bytes, lines: list[str]) -> None:
    found: list[str] = []
    splitter = LineSplitter(found.append)
    for byte in data:
        splitter.feed(bytes([byte]))
    splitter.close()
    assert found == lines
