"""The text of an exchange, and whether it travels as an argument or on standard input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.job import (
    Section,
    job_command,
    job_text,
    reading_command,
    script_command,
    section_text,
    timeout_text,
)
from provision.core.shell import ARGUMENT_LIMIT_BYTES, RemotePath, Script, command, script

MAX_ARG_STRLEN = 131_072
"""Linux refuses a longer argument, its NUL included."""
NONCE = ":0123456789abcdef:"
NOTHING = script(":")


def one(body: Script, timeout_s: float = 1.0) -> list[Section]:
    return [Section("k", body, timeout_s)]


@pytest.mark.parametrize("become", ["none", "sudo"])
@given(text=st.text("'a\" \\$\nä", max_size=40), times=st.integers(1, 3000))
def test_no_command_line_exceeds_the_limit_of_linux(become: str, text: str, times: int) -> None:
    sections = one(script(":", value=text * times))
    line, stdin = job_command(sections, NONCE, become=become)
    assert len(line.encode()) < MAX_ARG_STRLEN
    assert line.startswith("exec sudo -n sh -c " if become == "sudo" else "exec sh -c ")
    if stdin:
        assert job_text(sections, NONCE).encode() in stdin
        assert f"size={len(stdin)}\n" in line


def test_job_of_twenty_probes_travels_as_an_argument() -> None:
    sections = [
        Section(f"p{number}", script("echo 'it is' \"$x\"", x="x" * 800), 30.0)
        for number in range(20)
    ]
    _, stdin = job_command(sections, NONCE)
    assert stdin == b""


@given(st.integers(ARGUMENT_LIMIT_BYTES - 200, ARGUMENT_LIMIT_BYTES + 200))
def test_section_above_the_argument_limit_is_read_from_standard_input(size: int) -> None:
    (section,) = one(script(":", x="x" * size))
    by_stdin = "</dev/null\n'" in job_text([section], NONCE)
    assert by_stdin is (len(section_text(section)) > ARGUMENT_LIMIT_BYTES)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(86_400.0, "86400"), (0.5, "0.5"), (1_234_567.0, "1234567")],
)
def test_timeout_is_written_without_exponent(seconds: float, text: str) -> None:
    assert timeout_text(seconds) == text
    assert f"\nrun k {text} " in job_text(one(NOTHING, seconds), NONCE)


def test_script_without_marks_reads_the_root_of_the_host() -> None:
    line, _ = script_command(command("ls", RemotePath("/var")))
    assert "PROVISION_MOCK_ROOT" in line
    assert "PROVISION_MOCK_ROOT" in reading_command(command("ls", RemotePath("/var")))
