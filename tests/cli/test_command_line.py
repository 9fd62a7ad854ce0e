"""Standard input for the user's program, and the values of flags."""

from __future__ import annotations

import io
import os
import pty
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from provision.cli.command_line import redirected_stdin
from provision.cli.flag_values import parse_count
from provision.core.errors import UsageError


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[dict[str, IO[str]]]:
    (tmp_path / "file").write_text("x")
    reads, writes = os.pipe()
    master, slave = pty.openpty()
    ours, theirs = socket.socketpair()
    found: dict[str, IO[str]] = {
        "pipe": os.fdopen(reads),
        "file": (tmp_path / "file").open(),
        "socket": os.fdopen(ours.detach()),
        "terminal": os.fdopen(slave),
        "null": os.fdopen(os.open(os.devnull, os.O_RDONLY)),
    }
    yield found
    for file in found.values():
        file.close()
    theirs.close()
    os.close(writes)
    os.close(master)


@pytest.mark.parametrize("kind", ["pipe", "file", "socket"])
def test_redirected_stdin_is_returned(
    streams: dict[str, IO[str]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", streams[kind])
    assert redirected_stdin() == streams[kind].fileno()


@pytest.mark.parametrize("kind", ["terminal", "null"])
def test_terminal_and_null_are_not_redirected_stdin(
    streams: dict[str, IO[str]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", streams[kind])
    assert redirected_stdin() is None


@pytest.mark.parametrize("replaced", [None, io.StringIO("x")])
def test_stdin_without_file_descriptor_gives_none(
    replaced: IO[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", replaced)
    assert redirected_stdin() is None


def test_closed_stdin_gives_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = (tmp_path / "x").open("w+")
    file.close()
    monkeypatch.setattr(sys, "stdin", file)
    assert redirected_stdin() is None


@pytest.mark.parametrize("text", ["", "0", "1000", "\u0663", "100000000", "9" * 5000])
def test_number_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a valid number") as caught:
        parse_count("--clients", text, least=1)
    assert (caught.value.where, caught.value.why) == (
        "--clients",
        "allowed: a whole number from 1 to 999",
    )
    assert len(caught.value.what) < 80
    assert parse_count("--clients", "999", least=1) == 999
