"""One JSON document on standard output, everything for people elsewhere, exit codes, ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

PROGRAMS = ("invoke", "provision")


@pytest.mark.parametrize("program", PROGRAMS)
def test_json_is_the_only_thing_on_standard_output_whoever_writes(cli: Cli, program: str) -> None:
    ended = cli("vm.show", "--json", program=program)
    assert ended.document == {"vm": {"name": "dev", "note": "schön"}}
    assert ended.err == "a line of Python's\na line of a child\n"
    assert ended.code == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_json_people_read_standard_output(cli: Cli, program: str) -> None:
    ended = cli("vm.provision", program=program)
    assert "dev    | driver         | fetching 100%\n" in ended.out
    assert "web-10  ok=1 changed=0 failed=0 skipped=0 unknown=0  0.61 s\n" in ended.out
    assert ended.err == ""


def test_a_result_can_be_sent_to_a_file(cli: Cli) -> None:
    ended = cli("vm.list")
    assert ended.out == "no VMs\n"
    assert ended.err == "embedded mock: nothing is billed\n"


def test_a_result_goes_to_standard_output_whatever_the_status(cli: Cli) -> None:
    """`mps.doctor | less` and `mps.status > report.txt` hold what was found where something is wrong, too."""
    ended = cli("mps.explain", "--text", "x")
    assert (ended.code, ended.out, ended.err) == (1, "nothing in it is known\n", "")
    assert cli("mps.explain", "--text", "x", "--json").document == {"exit": 1, "matches": []}


def test_errors_beside_a_result_stay_on_standard_error(cli: Cli) -> None:
    ended = cli("vm.stop", "--name", "a,b")
    assert (ended.code, ended.out) == (4, "a stopped\n")
    assert ended.three_lines == [
        "error: b: was refused",
        "  why: a reason",
        "  try: provision vm.list",
    ]
    assert "a stopped" not in cli("vm.stop", "--name", "a,b", "--json").out


def test_notes_and_events_go_to_standard_error_beside_json(cli: Cli) -> None:
    ended = cli("vm.provision", "--json")
    assert ended.code == 1
    assert "dev    | driver         | fetching 100%\n" in ended.err
    host = ended.document["hosts"]["dev"]
    assert {
        key: host[key]
        for key in ("ok", "changed", "failed", "skipped", "unknown", "round_trips", "seconds")
    } == {
        "ok": 1,
        "changed": 1,
        "failed": 1,
        "skipped": 0,
        "unknown": 0,
        "round_trips": 2,
        "seconds": 13.9,
    }
    assert host["results"][0] == {"resource": "gpu", "status": "ok", "diff": None, "seconds": 0.0}
    assert host["results"][1]["diff"] == [{"key": "options", "actual": "noexec", "desired": "exec"}]
    assert ended.document["error"]["what"] == "did not converge"
    assert ended.document["exit"] == 1


def test_an_error_is_three_lines_and_its_own_exit_code(cli: Cli) -> None:
    ended = cli("mps.status")
    assert ended.three_lines == [
        "error: dev: is unreachable",
        "  why: Connection refused",
        "  try: provision vm.show",
    ]
    assert ended.out == ""
    assert ended.code == 4


def test_an_error_as_json(cli: Cli) -> None:
    ended = cli("mps.status", "--json")
    assert ended.document == {
        "error": {
            "what": "is unreachable",
            "where": "dev",
            "why": "Connection refused",
            "fix": "provision vm.show",
        },
        "exit": 4,
    }
    assert ended.code == 4


@pytest.mark.parametrize("program", ["provision", "invoke"])
def test_remedies_name_the_program_that_was_called(cli: Cli, program: str) -> None:
    """Resources and tables write `invoke`, since they know of no command line."""
    people = cli("vm.provision", program=program)
    assert f"  try: {program} vm.provision --diff" in people.out.splitlines()
    document = cli("vm.provision", "--json", program=program).document
    assert document["error"]["fix"] == f"{program} vm.provision --diff"
    assert [
        each["error"]["fix"] for each in document["hosts"]["dev"]["results"] if "error" in each
    ] == [f"{program} vm.provision --diff"]
    assert cli("mps.status", program=program).three_lines[2] == f"  try: {program} vm.show"


def test_an_unforeseen_error_shows_no_traceback_unless_asked(cli: Cli) -> None:
    ended = cli("mps.enable")
    assert ended.three_lines[1] == "  why: ZeroDivisionError: a bug"
    assert ended.code == 1
    debugged = cli("mps.enable", "--debug")
    assert "Traceback" in debugged.err
    assert "in mps_enable" in debugged.err
    assert debugged.code == 1


# --- the user's program ---------------------------------------------------------------------------

AWKWARD = [
    "printf",
    "%s",
    "it's",
    "a  b",
    "",
    "--json",
    "$(id)",
    "*",
    "line\nbreak",
    "ü",
    "-x",
    "--",
    "--help",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_words_after_the_dashes_arrive_as_they_were_typed(cli: Cli, program: str) -> None:
    ended = cli("dev.exec", "--", *AWKWARD, program=program)
    assert ended.out.split("\0") == AWKWARD
    assert ended.err == "program's stderr\n"
    assert ended.code == 0


@pytest.mark.parametrize("status", [0, 1, 3, 125, 255])
def test_the_programs_status_is_returned(cli: Cli, status: int) -> None:
    ended = cli("dev.exec", "--json", "--", "exit", str(status))
    assert ended.code == status
    assert ended.document.get("failed_in") == ("program" if status else None)
    assert ended.document["status"] == status
    assert "exit\0" in ended.err, "with --json the program's output goes to standard error"


def test_our_own_failure_beside_a_program_is_125(cli: Cli) -> None:
    ended = cli("dev.shell", "--json")
    assert ended.code == 125
    assert ended.document["failed_in"] == "provision"
    assert ended.document["exit"] == 125
    assert ended.document["error"]["what"] == "is unreachable"


def test_even_a_wrong_flag_is_125_beside_a_program(cli: Cli) -> None:
    assert cli("dev.exec", "--clients", "x", "--", "true").code == 125


def test_words_where_none_are_taken_are_refused(cli: Cli) -> None:
    ended = cli("vm.list", "--", "a", "b")
    assert ended.three_lines[:2] == ["error: vm.list: takes no words after --", "  why: got: a b"]
    assert ended.code == 2


def test_a_command_must_be_there(cli: Cli) -> None:
    ended = cli("dev.exec")
    assert ended.three_lines[0] == "error: dev.exec: needs a command after --"
    assert ended.code == 125


def test_arguments_of_a_file(cli: Cli) -> None:
    ended = cli("dev.run", "my file.py", "--json", "--", "--lr", "0.1")
    assert ended.document == {"file": "my file.py", "words": ["--lr", "0.1"]}


# --- flags ----------------------------------------------------------------------------------------


def test_flags_become_typed_targets(cli: Cli) -> None:
    words = [
        "--host",
        "web-1",
        "--forks",
        "3",
        "--serial=2",
        "--max-fail",
        "0",
        "--check",
        "--diff",
    ]
    assert cli("vm.create", *words, "--json").document["targets"] == {
        "host": "web-1",
        "limit": None,
        "forks": 3,
        "serial": 2,
        "max_fail": 0,
        "check": True,
        "diff": True,
    }


def test_targets_without_flags(cli: Cli) -> None:
    targets = cli("vm.create", "--json").document["targets"]
    assert targets == {
        "host": None,
        "limit": None,
        "forks": 32,
        "serial": None,
        "max_fail": None,
        "check": False,
        "diff": False,
    }


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--forks", "x"),
        ("--forks", "0"),
        ("--serial", "-1"),
        ("--max-fail", "1.5"),
        ("--forks", "٣"),
        ("--forks", 5000 * "9"),
    ],
)
def test_a_bad_number_is_usage_and_no_traceback(cli: Cli, flag: str, text: str) -> None:
    ended = cli("vm.create", f"{flag}={text}")
    assert ended.three_lines[0].startswith(f"error: {flag}: {text[:20]!r}")
    assert ended.code == 2


def test_host_and_limit_exclude_each_other(cli: Cli) -> None:
    assert cli("vm.provision", "--host", "a", "--limit", "b").code == 2


def test_what_invokes_parser_refuses_ends_as_invoke_ends_it(cli: Cli) -> None:
    ended = cli("vm.create", "--nmae", "x")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert "--nmae" in ended.err


def test_host_has_no_short_flag_that_is_helps(cli: Cli) -> None:
    ended = cli("vm.create", "-h")
    assert ended.code == 0
    assert "Usage: " in ended.out
    assert "--max-fail=STRING" in ended.out


@pytest.mark.parametrize(
    "words",
    [
        ("dev.exec", "--check", "--", "true"),
        ("dev.run", "--check", "x.py"),
        ("vm.ssh", "--check"),
        ("vm.copy", "--check", "a", "/b"),
    ],
)
def test_what_cannot_be_foretold_takes_no_check(cli: Cli, words: tuple[str, ...]) -> None:
    ended = cli(*words)
    assert (ended.code, ended.out) == (1, "")
    assert "No idea what" in ended.err


@pytest.mark.parametrize(
    ("task", "flag"),
    [
        ("vm.create", "--limit"),
        ("vm.ssh", "--forks"),
        ("mps.bench", "--serial"),
        ("dev.shell", "--diff"),
    ],
)
def test_help_lists_no_flag_that_is_refused_or_does_nothing(cli: Cli, task: str, flag: str) -> None:
    assert flag not in cli("--help", task).out
    assert cli(task, flag, "x").code == 1


def test_an_error_carries_nothing_that_a_terminal_would_obey(cli: Cli) -> None:
    ended = cli("vm.create", "--name", "\x1b[2Jx")
    assert "\x1b" not in ended.err


def test_deleting_asks_and_refuses_where_nobody_can_answer(cli: Cli) -> None:
    assert cli("vm.delete").code == 2
    assert cli("vm.delete", "--yes", "--json").document == {"deleted": True}


def test_the_program_is_named_as_it_was_called(cli: Cli) -> None:
    assert cli("vm.create", "--json", program="invoke").document["argv0"] == "invoke"
    assert cli("vm.create", "--json", program="provision").document["argv0"] == "provision"


# --- ends -----------------------------------------------------------------------------------------


def test_interrupted_is_130(cli: Cli) -> None:
    ended = cli("mps.disable", "--json")
    assert ended.code == 130
    assert ended.document["error"]["what"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_recap(
    project: Path, argv: Callable[..., list[str]], number: signal.Signals
) -> None:
    with subprocess.Popen(
        argv("invoke", "dev.up"),
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "dev  ok=0 changed=0 failed=0 skipped=0 unknown=1  0.50 s\n" in out
    assert "Traceback" not in err


def test_under_nohup_a_closed_terminal_ends_nothing(
    project: Path, argv: Callable[..., list[str]]
) -> None:
    command = ["nohup", *argv("invoke", "dev.up")]
    with subprocess.Popen(
        command,
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "ready\n":
            pass
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
        process.terminate()
        assert process.wait(timeout=30) == 130


def test_a_run_goes_on_when_nobody_reads_its_lines(
    project: Path, argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        argv("invoke", "mock.up"),
        cwd=project,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(timeout=30)
    assert err == b""
    assert (tmp_path / "state" / "provision" / "reached").read_text() == "the end"


def test_a_closed_pipe_makes_no_noise(project: Path, argv: Callable[..., list[str]]) -> None:
    with subprocess.Popen(
        argv("invoke", "vm.ssh-config"), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(timeout=30)
    assert err == b""


@pytest.mark.parametrize(("answer", "text"), [(b"YES\n", "deleted"), (b"\n", "kept")])
def test_a_question_on_a_terminal(
    project: Path, argv: Callable[..., list[str]], answer: bytes, text: str
) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(
        argv("invoke", "vm.delete"),
        cwd=project,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        while b"delete dev? [y/N] " not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, answer)
        after = b""
        while text.encode() not in after:
            after += os.read(ours, 4096)
        assert process.wait(timeout=30) == 0
    os.close(ours)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_into_a_closed_pipe_is_quiet(
    project: Path, argv: Callable[..., list[str]], unbuffered: str
) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        argv("provision", "--help"),
        cwd=project,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_run_leaves_its_journal(cli: Cli, tmp_path: Path) -> None:
    cli("vm.provision", env={"XDG_STATE_HOME": str(tmp_path)})
    (file,) = tmp_path.glob("provision/projects/*/runs/*.jsonl")
    assert file.stat().st_mode & 0o077 == 0
    assert '"task": "vm.provision"' in file.read_text().splitlines()[0]
    assert '"event": "run-finished"' in file.read_text().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_leads_nowhere(
    project: Path, argv: Callable[..., list[str]], program: str, closed: str
) -> None:
    """As under cron: nothing is an error of ours, and a child's words go into no file that we opened."""
    line = f'exec "$@" {closed}'
    for words, code in ((("vm.show", "--json"), 0), (("vm.delete",), 2)):
        done = subprocess.run(
            ["sh", "-c", line, "sh", *argv(program, *words)],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "Error" in done.stderr) == (code, False), done.stderr


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_full_disk_behind_standard_output_is_said(
    project: Path, argv: Callable[..., list[str]], program: str, flags: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            argv(program, "vm.list", *flags),
            cwd=project,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert (
        "error: vm.list: standard output could not be written\n  why: [Errno 28] No space left on device\n  try: df -h\n"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_state_that_cannot_be_written_is_no_mistake_of_the_program(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ended = cli("mock.up", env={"XDG_STATE_HOME": str(tmp_path / "file")})
    assert ended.code == 1
    assert ended.three_lines[:2] == [
        f"error: {tmp_path}/file/provision: this machine refuses a file",
        "  why: Not a directory",
    ]
    assert "XDG_STATE_HOME" in ended.three_lines[2]


@pytest.mark.parametrize("program", PROGRAMS)
def test_letters_that_the_locale_lacks_end_nothing(
    project: Path, argv: Callable[..., list[str]], program: str
) -> None:
    """The note holds an ö, which ASCII has not."""
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        argv(program, "vm.show", "--json"), cwd=project, env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"vm": {"name": "dev", "note": "sch\u00f6n"}}
    people = subprocess.run(
        argv(program, "vm.show"), cwd=project, env=env, capture_output=True, check=False
    )
    assert (people.returncode, people.stdout.splitlines()[-1]) == (0, b"VM dev, sch\\xf6n"), (
        people.stderr
    )
