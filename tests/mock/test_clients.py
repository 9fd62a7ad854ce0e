"""The same program several times at once: `dev.exec --clients`, `dev.run --clients`."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provision.commands.dev.exec import dev_exec
from provision.commands.dev.run import dev_run
from provision.commands.dev.shared.clients import lines as client_lines
from provision.commands.dev.shared.clients import run as clients_run
from provision.commands.dev.shared.clients.lines import NumberedLines
from provision.commands.dev.shared.clients.output import ClientsOutput
from provision.commands.dev.shared.clients.result import Client, clients_result, interrupted_result
from provision.core.errors import HostError, Unreachable
from provision.core.shell import shell_text
from provision.project.project import Project
from provision.testing import MockHost
from tests.mock.plain_client import SHELL, eventually
from tests.mock.sharing import HERE, Shared

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A mock host with eight CPUs and a running container."""
    with MockHost(shell=SHELL) as host:
        made = Shared(tmp_path_factory.mktemp("clients"), host)
        assert made.up().exit_code == 0
        yield made


def test_clients_start_together_with_numbered_lines_and_worst_status(box: Shared) -> None:
    source = 'echo "it\'s $0"; echo "to stderr" >&2; printf "no line end"; exit 3'
    done = dev_exec(box.project, HERE, ["sh", "-c", source, "a 'b' $(c)"], count=3)
    lines = box.out.decode().splitlines()
    for number in "123":
        assert lines.count(f"[{number}] it's a 'b' $(c)") == 1
        assert lines.count(f"[{number}] no line end") == 1
        assert f"[{number}] to stderr" in box.err.decode().splitlines()
    assert len(lines) == 6
    assert (done.exit_code, done.document["failed_in"]) == (3, "program")
    found = done.document["clients"]
    assert [(each["client"], each["container"], each["status"]) for each in found] == [
        (number, "worker", 3) for number in (1, 2, 3)
    ]
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", each["started"]) and each["seconds"] >= 0
        for each in found
    )
    assert re.search(r"(?m)^ +2  worker +\d\d:\d\d:\d\d +\d+\.\d\d +3$", done.text)
    assert "3 failed" in done.text
    assert re.search(r"(?m)^\[2\] starts \d\d:\d\d:\d\d$", box.err.decode())
    assert re.search(r"(?m)^\[2\] ends after \d+\.\d\d s, status 3$", box.err.decode())
    assert box.inside('ls -A "$PROVISION_MOCK_ROOT/workspace"') == ""


MEET = """
import os, pathlib, sys, time
mine = pathlib.Path(f"here-{os.getpid()}")
mine.write_text("")
deadline = time.monotonic() + 30
while len(list(pathlib.Path().glob("here-*"))) < 4 and time.monotonic() < deadline:
    time.sleep(0.01)
variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
print(len(list(pathlib.Path().glob("here-*"))), *map(os.environ.get, variables))
"""


def test_clients_share_threads_unless_settings_set_them(box: Shared) -> None:
    project = box.folder / "project"
    project.mkdir(exist_ok=True)
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / "meet.py").write_text(MEET)
    box.set(worker={"env": {"MKL_NUM_THREADS": "5"}})
    box.up()
    done = dev_run(box.project, HERE, "meet.py", count=4)
    assert (done.exit_code, done.document["failed_in"]) == (0, None)
    assert sorted(box.out.decode().splitlines()) == [
        f"[{number}] 4 2 5" for number in range(1, 5)
    ], "all four ran at once"
    box.set()
    box.up()
    dev_exec(box.project, HERE, ["printenv", "OMP_NUM_THREADS"], count=20)
    assert set(box.out.decode().split()[1::2]) == {"1"}, "each client has at least one thread"


def test_unknown_program_fails_for_each_client(box: Shared) -> None:
    done = dev_exec(box.project, HERE, ["no-such-program"], count=2)
    assert done.exit_code == 127
    assert len(re.findall(r"(?m)^\[[12]\] sh: .*not found$", box.err.decode())) == 2, (
        "the program failed, not provision"
    )
    with pytest.raises(HostError, match="the worker container is not running"):
        dev_exec(_other(box), HERE, ["true"], count=2)


def _other(box: Shared) -> Project:
    made = Shared(box.folder, box.host)
    made.set(worker={"name": "other"})
    return made.project


def test_client_missing_at_the_barrier_ends_the_run(
    box: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients_run, "BARRIER_S", 1)
    read = shell_text

    def for_more_clients(path: Path, *uses: str) -> str:
        """The client's script, which waits for one client more than are started."""
        return read(path, *uses).replace('-ge "$count"', '-gt "$count"')

    monkeypatch.setattr(clients_run, "shell_text", for_more_clients)
    with pytest.raises(HostError, match="not every program could be started") as caught:
        dev_exec(box.project, HERE, ["true"], count=3)
    assert caught.value.why == "0 of 3 started within 1 s"


def test_killed_client_has_status_137(box: Shared) -> None:
    done = dev_exec(box.project, HERE, ["sh", "-c", "kill -KILL $$"], count=2)
    assert [each["status"] for each in done.document["clients"]] == [137, 137]


def test_lost_connection_ends_all_clients(box: Shared) -> None:
    ended: list[Unreachable] = []

    def run() -> None:
        try:
            dev_exec(project, HERE, ["sh", "-c", "echo here; sleep 77.77"], count=3)
        except Unreachable as error:
            ended.append(error)

    project = box.project
    thread = threading.Thread(target=run)
    thread.start()
    assert eventually(lambda: box.out.count(b"here") == 3, 30)
    box.host.server.drop_connections()
    thread.join(30)
    assert ended
    assert (
        len(re.findall(r"(?m)^ +\d  worker +\d\d:\d\d:\d\d +-  no report$", box.err.decode())) == 3
    )
    assert eventually(lambda: running(box, "sleep 77[.]77") == "0", 30)


@contextmanager
def ctrl_c(holds: Callable[[], bool]) -> Iterator[None]:
    """Press Ctrl-C as soon as `holds` is true."""

    def press() -> None:
        if eventually(holds, 30):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    yield
    thread.join(30)


@pytest.mark.parametrize(
    "source",
    ["sleep 66.66", "trap '' TERM; sleep 66.66; sleep 66.66"],
    ids=["obeys", "ignores SIGTERM"],
)
def test_ctrl_c_ends_all_clients_and_reports_each(box: Shared, source: str) -> None:
    project = box.project
    program = f"mkdir first 2>/dev/null && {{ sleep 0.3; exit 4; }}; echo here; {source}"
    box.inside('rm -rf "$PROVISION_MOCK_ROOT/workspace/first"')
    with ctrl_c(lambda: box.out.count(b"here") == 2 and b"status 4" in box.err):
        done = dev_exec(project, HERE, ["sh", "-c", program], count=3)
    assert (done.exit_code, done.document["failed_in"], done.document["error"]["what"]) == (
        130,
        "provision",
        "interrupted",
    )
    assert sorted(str(each["status"]) for each in done.document["clients"]) == ["4", "None", "None"]
    assert all(each["started"] for each in done.document["clients"])
    lines = done.text.splitlines()
    assert (
        len(
            [
                line
                for line in lines
                if re.fullmatch(r" +\d  worker +\d\d:\d\d:\d\d +-  interrupted", line)
            ]
        )
        == 2
    )
    assert (
        len(
            [
                line
                for line in lines
                if re.fullmatch(r" +\d  worker +\d\d:\d\d:\d\d +\d+\.\d\d +4", line)
            ]
        )
        == 1
    )
    assert lines[-1] == "interrupted: 1 of 3 had ended, the others were ended"
    assert (lines[0], len({len(line) for line in lines[1:-1]})) == ("", 1), (
        "a table, below the ^C of the terminal"
    )
    assert eventually(lambda: running(box, "sleep 66[.]66") == "0", 5)
    assert (
        box.inside("ls -A \"$PROVISION_MOCK_ROOT/workspace\" | grep '^[.]provision-' || true") == ""
    )


def running(box: Shared, pattern: str) -> str:
    """The number of processes of the container whose command line matches."""
    return box.inside(
        f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '{pattern}'"
    ).strip()


def test_table_separates_interrupted_and_not_started() -> None:
    done = interrupted_result([Client(1, "worker", 1700000000, 10.0), Client(2)])
    assert [line.split()[-1] for line in done.text.splitlines()[2:4]] == ["interrupted", "started"]
    assert done.text.splitlines()[3].endswith("not started")


@pytest.mark.slow
def test_clients_are_distributed_over_containers(box: Shared) -> None:
    box.set(topology="containers", worker={"processes": 2})
    box.up()
    done = dev_exec(box.project, HERE, ["true"], count=3)
    assert [each["container"] for each in done.document["clients"]] == [
        "worker",
        "worker-2",
        "worker",
    ]
    box.set()
    box.up()


def framed(key: str, data: bytes) -> bytes:
    return (
        f":t0k: begin {key}\n".encode()
        + base64.encodebytes(data)
        + f"\n:t0k: end {key} 0\n".encode()
    )


def test_pieces_of_streams_are_joined_to_lines() -> None:
    out, err = bytearray(), bytearray()
    output = ClientsOutput("t0k", 2, out.extend, err.extend)
    stream = b"".join(
        [
            b"what a login shell prints\n",
            framed("1.err", b":t0k: begin 1700000000 10.00 worker\n"),
            framed("2.out", b"half a l"),
            framed("1.err", b"user's :t0k: line\nno line end:t0k: en"),
            framed("1.out", b"rest"),
            framed("2.out", b"ine\n"),
            framed("1.err", b"d 12.50 0\n"),
            framed("1.out", b""),
            framed("1.err", b""),
            framed("2.err", b"after all:t0"),
        ]
    )
    for byte in stream:
        output(bytes([byte]))
    output.close()
    assert out == b"[2] half a line\n[1] rest\n"
    assert re.sub(rb"\d\d:\d\d:\d\d", b"NOW", err).splitlines() == [
        b"[1] starts NOW",
        b"[1] user's :t0k: line",
        b"[1] no line end",
        b"[1] ends after 2.50 s, status 0",
        b"[2] after all:t0",
    ]
    assert clients_result(output.clients[:1]).document["seconds"] == 2.5


@pytest.mark.parametrize(
    "source",
    [
        "printf oops >&2",
        "printf '10%%\\r90%%\\r' >&2",
        "printf '\\r90%%' >&2; printf '\\0\\377' >&2",
    ],
)
def test_last_line_without_newline_does_not_hide_the_end_mark(box: Shared, source: str) -> None:
    done = dev_exec(box.project, HERE, ["sh", "-c", source], count=2)
    assert (done.exit_code, [each["status"] for each in done.document["clients"]]) == (0, [0, 0])
    assert len(re.findall(rb"(?m)^\[[12]\] ends after \d+\.\d\d s, status 0$", box.err)) == 2


def test_progress_lines_are_forwarded_at_once(box: Shared) -> None:
    """A line that begins or ends with a carriage return is forwarded before its line end."""
    box.inside('rm -f "$PROVISION_MOCK_ROOT/workspace/go"')
    project = box.project
    source = (
        "printf 'a\\r'; printf '\\rb' >&2; until test -e go; do sleep 0.05; done; "
        "printf '\\rc\\n' >&2"
    )
    thread = threading.Thread(
        target=dev_exec, args=(project, HERE, ["sh", "-c", source]), kwargs={"count": 1}
    )
    thread.start()
    try:
        assert eventually(lambda: box.out == b"[1] a\n" and b"[1] b\n" in box.err, 30)
    finally:
        box.inside(': >"$PROVISION_MOCK_ROOT/workspace/go"')
        thread.join(30)
    box.inside('rm -f "$PROVISION_MOCK_ROOT/workspace/go"')
    assert b"[1] c\n[1] ends after" in box.err


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb", b"[1] a\n[1] b\n"),
        (b"a\r\n\r\nb\r\n", b"[1] a\n[1] \n[1] b\n"),
        (b" 10%\r 20%\r100%\n", b"[1]  10%\n[1]  20%\n[1] 100%\n"),
        (b"\r 10%\r 20%\r100%\n", b"[1]  10%\n[1]  20%\n[1] 100%\n"),
        (b"\0\xff\n\n", b"[1] \0\xff\n[1] \n"),
        (b"", b""),
    ],
)
def test_lines_are_prefixed_with_client_number(data: bytes, lines: bytes) -> None:
    printed = bytearray()
    whole = NumberedLines(1, printed.extend)
    whole(data)
    whole.close()
    assert printed == lines
    if b"\r " not in data:  # of a line that begins so, what has come is shown
        printed.clear()
        apart = NumberedLines(1, printed.extend)
        for byte in data:
            apart(bytes([byte]))
        apart.close()
        assert printed == lines


def test_oversized_line_is_forwarded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_lines, "_LONGEST_LINE_BYTES", 10)
    printed = bytearray()
    lines = NumberedLines(1, printed.extend)
    for _ in range(4):
        lines(b"12345")
    assert printed == b"[1] 123451234512345\n"
    lines(b"\n\n")
    assert printed == b"[1] 123451234512345\n[1] 12345\n[1] \n"
