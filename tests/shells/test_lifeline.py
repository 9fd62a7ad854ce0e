"""Lost connections and exceeded time limits end every process that a job has started."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack

import pytest

from provision.core import job
from provision.core.errors import CommandTimeout, Unreachable
from provision.core.exchange import Listener, exchange
from provision.core.job import Section, job_command, script_command
from provision.core.shell import Script, script
from provision.hosts.local import LocalTransport
from tests.shells.shells import Shell
from tests.shells.trees import Tree, channel, read_until, required, tree

pytestmark = pytest.mark.slow

SOON_S = 20.0
"""Time limit of the tests, for a busy machine. Without a lifeline processes run for 300 s."""
PATIENCE_S = 1

FAMILY = script("""
sleep 300 &
(sleep 301 & wait) &
sh -c 'sleep 302; :' &
echo "ready"
sleep 303
""")
STUBBORN = script("""
sh -c 'trap "" TERM HUP INT; echo ready; sleep 300; sleep 301; :'
:
""")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PATIENCE_S", PATIENCE_S)


def sent(body: Script, ballast: int = 0) -> tuple[str, bytes]:
    first = Section("a", script("echo first", ballast="x" * ballast), 300.0)
    sections = [first, Section("b", body, 300.0), Section("c", script("echo never"), 300.0)]
    return job_command(sections, ":n:")


def open_all(
    stack: ExitStack, shell: Shell, mine: Tree, commands: Iterable[tuple[str, bytes]]
) -> list[subprocess.Popen[bytes]]:
    """Open several channels at once, so that their processes end at the same time."""
    return [
        stack.enter_context(channel(shell, mine, command, stdin)) for command, stdin in commands
    ]


def hang_up(process: subprocess.Popen[bytes]) -> None:
    required(process.stdin).close()
    required(process.stdout).close()


def test_every_process_ends_with_the_connection(shell: Shell) -> None:
    commands = [sent(body, ballast) for body in (FAMILY, STUBBORN) for ballast in (0, 150_000)]
    with tree() as mine, ExitStack() as stack:
        running = open_all(
            stack, shell, mine, [*commands, script_command(FAMILY), script_command(STUBBORN)]
        )
        for process in running:
            read_until(process.stdout, b"ready")
        mine.wait_until(
            lambda alive: sum("sleep 30" in line for line in alive.values()) >= 3 * 4 + 3
        )
        for process in running:
            hang_up(process)
        mine.wait_until_gone(SOON_S)


def test_connection_lost_at_start_leaves_no_process(shell: Shell) -> None:
    with tree() as mine, ExitStack() as stack:
        for delay_s in (0.0, 0.001, 0.002, 0.004, 0.006, 0.01, 0.02, 0.05):
            (process,) = open_all(stack, shell, mine, [sent(FAMILY)])
            time.sleep(delay_s)
            hang_up(process)
        mine.wait_until_gone(SOON_S)


def test_truncated_job_is_not_run(shell: Shell) -> None:
    """A job on standard input is truncated at places where its text is valid shell."""
    command, stdin = sent(script("echo second", ballast="x" * 150_000))
    with tree() as mine, ExitStack() as stack:
        sizes = (stdin.index(b"run b "), len(stdin) // 2, len(stdin) - 4)
        running = open_all(stack, shell, mine, [(command, stdin[:size]) for size in sizes])
        for process in running:
            required(process.stdin).close()
            assert b"begin" not in required(process.stdout).read()
        mine.wait_until_gone(SOON_S)


def test_finished_job_leaves_no_process_and_prints_nothing_else(shell: Shell) -> None:
    command, stdin = job_command([Section("a", script("echo hi"), 30.0)], ":n:")
    with tree() as mine, channel(shell, mine, command, stdin) as process:
        output = required(process.stdout).read()
        assert required(process.stderr).read() == b""
        assert process.wait(SOON_S) == 0
        mine.wait_until_gone(SOON_S)
    assert output == b":n: begin a\nhi\n:n: end a 0\n:n: done\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 143", 143),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ],
)
def test_script_without_marks_exits_with_its_own_status(
    shell: Shell, text: str, status: int
) -> None:
    command, stdin = script_command(script('eval "$text"', text=text))
    with tree() as mine, channel(shell, mine, command, stdin) as process:
        assert process.wait(SOON_S) == status
        mine.wait_until_gone(SOON_S)


# --- time limits ----------------------------------------------------------------------------------


def local(shell: Shell, mine: Tree, patch: pytest.MonkeyPatch) -> LocalTransport:
    shell.enter(patch, **mine.env, PROVISION_MOCK_ROOT="")
    return LocalTransport(shell.host())


@pytest.mark.parametrize(
    "text",
    ["exec sleep 300", "trap '' TERM; while :; do sleep 0.2; done"],
    ids=["willing", "stubborn"],
)
def test_section_that_exceeds_its_timeout_is_ended_and_reported(
    shell: Shell, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tree() as mine:
        transport = local(shell, mine, monkeypatch)
        sections = [
            Section("a", script('echo begun\neval "$text"', text=text), 1.0, merge=True),
            Section("b", script("exit 124"), 30.0),
            Section("c", script("echo after"), 30.0),
        ]
        reply = exchange(transport, sections, clock=time.monotonic)
        assert reply.error is None
        assert [(answer.timed_out, answer.output) for answer in reply.results.values()] == [
            (True, "begun\n"),
            (False, ""),
            (False, "after\n"),
        ]
        assert reply.results["b"].status == 124
        mine.wait_until_gone(SOON_S)


# --- this very machine ----------------------------------------------------------------------------


@pytest.mark.parametrize("body", [FAMILY, STUBBORN], ids=["family", "stubborn"])
def test_closing_the_local_transport_ends_running_processes(
    shell: Shell, body: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tree() as mine:
        transport = local(shell, mine, monkeypatch)

        def line(key: str, text: str) -> None:
            if text == "ready":
                threading.Thread(target=transport.close).start()

        reply = exchange(
            transport,
            [Section("a", body, 300.0, merge=True)],
            clock=time.monotonic,
            listener=Listener(on_line=line),
        )
        assert isinstance(reply.error, Unreachable)
        mine.wait_until_gone(SOON_S)


def test_timeout_of_the_local_transport_ends_running_processes(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tree() as mine:
        transport = local(shell, mine, monkeypatch)
        command, stdin = sent(FAMILY)
        with pytest.raises(CommandTimeout):
            transport.exchange(
                command,
                stdin,
                on_stdout=lambda data: None,
                on_stderr=lambda data: None,
                timeout_s=1.0,
            )
        mine.wait_until_gone(SOON_S)


def test_process_tree_finds_its_own_processes(shell: Shell) -> None:
    """The other tests expect to find no process, so this one makes sure that some are found."""
    with tree() as mine, channel(shell, mine, "sleep 300 & sleep 301") as process:
        mine.wait_until(lambda alive: len(alive) >= 2)
        assert process.pid in mine.pids() or os.getpid() not in mine.pids()
        with pytest.raises(AssertionError, match="sleep"):
            mine.wait_until_gone(0.1)
