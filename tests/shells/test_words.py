"""Words reach programs unchanged, however a script is sent, under every shell."""

from __future__ import annotations

import subprocess
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.core.exchange import exchange
from provision.core.job import Section, job_text, script_command
from provision.core.shell import Argument, RemotePath, Secret, command, join, payload, quote, script
from provision.hosts.local import LocalTransport
from tests.shells.shells import Shell
from tests.unit.frames import complete_sections

spawning = settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])

NASTY = (
    "$(touch pwned)",
    "`touch pwned`",
    "${HOME}",
    "'",
    "''",
    "'\\''",
    '"',
    "\\",
    "\\\\n",
    "\n",
    "\n\n",
    "a\n",
    "-n",
    "-e",
    "--",
    "-",
    "%s%d%%",
    "\\c",
    "\\0",
    "*",
    "~",
    "~root",
    "!!",
    "#x",
    "a=b",
    ";",
    "&& false",
    "|",
    "{a,b}",
    "\r",
    "\t",
    " ",
    "",
    "\x01\x7f\x1b[31m",
    "ü✓\U0001f600",
    "\udcff\udc80",  # bytes that are not UTF-8
    "if",
    "}",
    ")",
    "nonce end k 0",
)
texts = st.sampled_from(NASTY) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
)
text = st.lists(texts, max_size=4).map("".join)
words = st.one_of(
    text,
    st.integers(),
    text.map(lambda value: RemotePath("/" + value)),
    text.map(Secret),
    st.lists(
        text.map(Secret) | text | text.map(lambda value: RemotePath("/" + value)), max_size=3
    ).map(lambda parts: join(*parts)),
)

PRINT_WORDS = "for word; do printf '%s\\0' \"$word\"; done"
ROOT = "/the host's $(root)\n/ü"


def expected_text(word: Argument, root: str = ROOT) -> str:
    """The text that a program must receive for a word."""
    if isinstance(word, RemotePath):
        return root + word.path
    if isinstance(word, Secret):
        return word.value
    if isinstance(word, int | str):
        return str(word)
    return "".join(expected_text(part, root) for part in word.parts)


def encoded(expected: list[Argument], root: str = ROOT) -> bytes:
    return b"".join(
        expected_text(word, root).encode("utf-8", "surrogateescape") + b"\0" for word in expected
    )


@spawning
@given(st.lists(words, max_size=25))
def test_quoted_words_reach_the_program_unchanged(
    shell: Shell, given_words: list[Argument]
) -> None:
    done = shell.run(
        "\n".join(["set --", *(f'set -- "$@" {quote(word)}' for word in given_words), PRINT_WORDS]),
        R=ROOT,
    )
    assert done.stdout == encoded(given_words)
    assert done.stderr == b""


@spawning
@given(st.lists(words, max_size=12), st.lists(words, min_size=3, max_size=3))
def test_arguments_and_bindings_reach_the_script_unchanged(
    shell: Shell, argv: list[Argument], bound: list[Argument]
) -> None:
    made = script(
        'printf \'%s\\0\' "$@" "$a" "$b" "$c"', argv=argv, a=bound[0], b=bound[1], c=bound[2]
    )
    done = shell.run(made.render(), R=ROOT)
    assert done.stdout == encoded([*argv, *bound])


@pytest.mark.slow
@spawning
@given(
    st.lists(words, min_size=1, max_size=6),
    st.sampled_from(["none", "sudo"]),
    st.sampled_from([0, 60, 120, 300]),
    st.sampled_from(["", "merge", "strict", "merge strict"]),
)
def test_sections_run_alike_as_argument_and_from_standard_input(
    shell: Shell, given_words: list[Argument], become: str, ballast: int, flags: str
) -> None:
    """Small and large sections, sent as an argument or on standard input, with and without sudo."""
    large = script(
        "test ${#ballast} -eq $size\n" + PRINT_WORDS,
        argv=given_words,
        ballast=("it's" + "x" * 996) * ballast,
        size=1000 * ballast,
    )
    small = script(PRINT_WORDS, argv=given_words)
    sections = [
        Section("k", small, 20.0, merge="merge" in flags),
        Section("l", large, 20.0, merge="merge" in flags, strict="strict" in flags),
        Section("m", small, 20.0),
    ]
    with pytest.MonkeyPatch.context() as patch:
        shell.enter(patch, PROVISION_MOCK_ROOT=ROOT)
        reply = exchange(LocalTransport(shell.host(become)), sections, clock=time.monotonic)
    assert reply.error is None
    assert reply.stderr == ""
    assert [answer.status for answer in reply.results.values()] == [0, 0, 0]
    text = encoded(given_words).decode("utf-8", "replace")
    assert {key: answer.output for key, answer in reply.results.items()} == {
        "k": text,
        "l": text,
        "m": text,
    }


@spawning
@given(st.lists(words, max_size=6), st.sampled_from([0, 150_000]))
def test_script_without_marks_receives_its_arguments(
    shell: Shell, given_words: list[Argument], ballast: int
) -> None:
    made = script(PRINT_WORDS + "\nexit 7", argv=given_words, ballast="x" * ballast)
    line, stdin = script_command(made)
    out, err = bytearray(), bytearray()
    with pytest.MonkeyPatch.context() as patch:
        shell.enter(patch, PROVISION_MOCK_ROOT=ROOT)
        status = LocalTransport(shell.host()).exchange(
            line, stdin, on_stdout=out.extend, on_stderr=err.extend, timeout_s=20.0
        )
    assert (bytes(out), bytes(err), status) == (encoded(given_words), b"", 7)


@spawning
@given(st.binary(max_size=4000))
def test_framing_returns_output_byte_for_byte(shell: Shell, data: bytes) -> None:
    """Framing adds and removes no byte of the output."""
    show = script('printf %s "$data" | base64 -d', data=payload(data))
    done = shell.run(
        job_text([Section("a", show, 20.0), Section("b", show, 20.0, merge=True)], ":n:"),
        PROVISION_MOCK_ROOT="",
    )
    found = complete_sections(":n:", done.stdout)
    assert [(key, section.data, section.status) for key, section in found.items()] == [
        ("a", data, 0),
        ("b", data, 0),
    ]


@pytest.mark.parametrize("ballast", [0, 120_000])
def test_section_inherits_no_descriptor_of_the_job(shell: Shell, ballast: int) -> None:
    """A process that it leaves running would otherwise keep the channel open."""
    look = script(
        'for fd in /proc/$$/fd/*; do test ! -e "$fd" || echo "${fd##*/}"; done',
        ballast="x" * ballast,
    )
    with pytest.MonkeyPatch.context() as patch:
        shell.enter(patch)
        reply = exchange(
            LocalTransport(shell.host()),
            [Section("a", look, 20.0), Section("b", look, 20.0, merge=True)],
            clock=time.monotonic,
        )
    for key in ("a", "b"):
        seen = set(reply.results[key].output.split())
        assert {"0", "1", "2"} <= seen
        assert not {"3", "4"} & seen


def test_login_shell_output_and_unset_root_do_not_disturb_a_job(shell: Shell) -> None:
    body = command("printf", "%s", RemotePath("/etc"))
    done = shell.run(
        "echo Welcome; echo :n: begin a; " + job_text([Section("a", body, 20.0)], ":n:")
    )
    assert complete_sections(":n:", done.stdout)["a"].data == b"/etc"


def test_bin_sh_reads_quoted_words_as_intended() -> None:
    """Quoting works for /bin/sh as well."""
    line = " ".join(quote(word) for word in ["printf", "%s\\0", *NASTY])
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True)
    assert done.stdout == b"".join(
        word.encode("utf-8", "surrogateescape") + b"\0" for word in NASTY
    )
