"""A secret never becomes an argument: every process of the machine could read it there."""

from __future__ import annotations

import time
from pathlib import Path

from provision.core.exchange import exchange
from provision.core.job import Section, script_command
from provision.core.model import Host
from provision.core.shell import Secret, script
from provision.hosts.local import LocalTransport

WORD = "hunter2-b7c1"
PLAIN = "not-secret-93ae"
"""Unlike WORD, since tests that run at the same time see one another's command lines."""
LOOK = """
for process in /proc/[0-9]*; do
    tr '\\0' ' ' <"$process/cmdline" 2>/dev/null || true
    echo
done >"$out"
test -n "$word"
"""


def test_secret_does_not_appear_on_any_command_line(tmp_path: Path) -> None:
    transport = LocalTransport(Host(name="here", address="local", become="none"))
    seen = tmp_path / "seen"
    body = script(LOOK, out=str(seen), word=Secret(WORD))
    reply = exchange(transport, [Section("one", body, 20.0, strict=True)], clock=time.monotonic)
    assert reply.error is None
    assert reply.results["one"].status == 0
    assert "/proc" in seen.read_text() or "sh" in seen.read_text()
    assert WORD not in seen.read_text()


def test_plain_word_appears_on_a_command_line(tmp_path: Path) -> None:
    transport = LocalTransport(Host(name="here", address="local", become="none"))
    seen = tmp_path / "seen"
    exchange(
        transport,
        [Section("one", script(LOOK, out=str(seen), word=PLAIN), 20.0)],
        clock=time.monotonic,
    )
    assert PLAIN in seen.read_text()


def test_secret_of_script_without_marks_is_sent_on_standard_input() -> None:
    command, stdin = script_command(script('test -n "$word"', word=Secret(WORD)))
    assert WORD not in command
    assert WORD.encode() in stdin
