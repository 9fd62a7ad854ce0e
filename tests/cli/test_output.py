"""Output and exit codes: the JSON document, text for people, errors, signals, closed streams."""

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
def test_json_is_the_only_output_on_stdout(cli: Cli, program: str) -> None:
    ended = cli("vm.show", "--json", program=program)
    assert ended.document == {"vm": {"name": "dev", "note": "schön"}}
    assert ended.err == "a line of Python's\na line of a child\n"
    assert ended.code == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_json_notes_go_to_stdout(cli: Cli, program: str) -> None:
    ended = cli("vm.provision", program=program)
    assert "dev    | driver         | fetching 100%\n" in ended.out
    assert "web-10  ok=1 changed=0 failed=0 skipped=0 unknown=0  0.61 s\n" in ended.out
    assert ended.err == ""


def test_result_goes_to_stdout_without_notes(cli: Cli) -> None:
    ended = cli("vm.list")
    assert ended.out == "no VMs\n"
    assert ended.err == "embedded mock: nothing is billed\n"


def test_result_goes_to_stdout_at_any_exit_code(cli: Cli) -> None:
    """`mps.status > report.txt` holds the report of a failed check, too."""
    ended = cli("mps.explain", "--text", "x")
    assert (ended.code, ended.out, ended.err) == (1, "nothing in it is known\n", "")
    assert cli("mps.explain", "--text", "x", "--json").document == {"exit": 1, "matches": []}


def test_errors_beside_result_go_to_stderr(cli: Cli) -> None:
    ended = cli("vm.stop", "--name", "a,b")
    assert (ended.code, ended.out) == (4, "a stopped\n")
    assert ended.three_lines == [
        "error: b: was refused",
        "  why: a reason",
        "  try: provision vm.list",
    ]
    assert "a stopped" not in cli("vm.stop", "--name", "a,b", "--json").out


def test_notes_go_to_stderr_beside_json(cli: Cli) -> None:
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


def test_error_has_three_lines_and_own_exit_code(cli: Cli) -> None:
    ended = cli("mps.status")
    assert ended.three_lines == [
        "error: dev: is unreachable",
        "  why: Connection refused",
        "  try: provision vm.show",
    ]
    assert ended.out == ""
    assert ended.code == 4


def test_error_as_json_document(cli: Cli) -> None:
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
def test_remedies_name_the_called_program(cli: Cli, program: str) -> None:
    """Resources and tables write `invoke`, because they do not know the user's program."""
    people = cli("vm.provision", program=program)
    assert f"  try: {program} vm.provision --diff" in people.out.splitlines()
    document = cli("vm.provision", "--json", program=program).document
    assert document["error"]["fix"] == f"{program} vm.provision --diff"
    assert [
        each["error"]["fix"] for each in document["hosts"]["dev"]["results"] if "error" in each
    ] == [f"{program} vm.provision --diff"]
    assert cli("mps.status", program=program).three_lines[2] == f"  try: {program} vm.show"


def test_unexpected_error_shows_traceback_only_with_debug(cli: Cli) -> None:
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
def test_words_after_dashes_arrive_unchanged(cli: Cli, program: str) -> None:
    ended = cli("dev.exec", "--", *AWKWARD, program=program)
    assert ended.out.split("\0") == AWKWARD
    assert ended.err == "program's stderr\n"
    assert ended.code == 0


@pytest.mark.parametrize("status", [0, 1, 3, 125, 255])
def test_program_status_is_returned(cli: Cli, status: int) -> None:
    ended = cli("dev.exec", "--json", "--", "exit", str(status))
    assert ended.code == status
    assert ended.document.get("failed_in") == ("program" if status else None)
    assert ended.document["status"] == status
    assert "exit\0" in ended.err, "with --json the program's output goes to standard error"


def test_own_failure_of_program_task_is_125(cli: Cli) -> None:
    ended = cli("dev.shell", "--json")
    assert ended.code == 125
    assert ended.document["failed_in"] == "provision"
    assert ended.document["exit"] == 125
    assert ended.document["error"]["what"] == "is unreachable"


def test_wrong_flag_of_program_task_is_125(cli: Cli) -> None:
    assert cli("dev.exec", "--clients", "x", "--", "true").code == 125


def test_unsupported_words_after_dashes_are_refused(cli: Cli) -> None:
    ended = cli("vm.list", "--", "a", "b")
    assert ended.three_lines[:2] == ["error: vm.list: takes no words after --", "  why: got: a b"]
    assert ended.code == 2


def test_missing_command_is_refused(cli: Cli) -> None:
    ended = cli("dev.exec")
    assert ended.three_lines[0] == "error: dev.exec: needs a command after --"
    assert ended.code == 125


def test_dev_run_passes_file_and_arguments(cli: Cli) -> None:
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


def test_targets_without_flags_are_defaults(cli: Cli) -> None:
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
def test_invalid_number_is_usage_error(cli: Cli, flag: str, text: str) -> None:
    ended = cli("vm.create", f"{flag}={text}")
    assert ended.three_lines[0].startswith(f"error: {flag}: {text[:20]!r}")
    assert ended.code == 2


def test_host_with_limit_is_refused(cli: Cli) -> None:
    assert cli("vm.provision", "--host", "a", "--limit", "b").code == 2


def test_parser_errors_end_like_invokes(cli: Cli) -> None:
    ended = cli("vm.create", "--nmae", "x")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert "--nmae" in ended.err


def test_h_is_short_flag_of_help_only(cli: Cli) -> None:
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
def test_task_without_dry_run_has_no_check_flag(cli: Cli, words: tuple[str, ...]) -> None:
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
def test_help_lists_supported_flags_only(cli: Cli, task: str, flag: str) -> None:
    assert flag not in cli("--help", task).out
    assert cli(task, flag, "x").code == 1


def test_error_text_has_no_control_characters(cli: Cli) -> None:
    ended = cli("vm.create", "--name", "\x1b[2Jx")
    assert "\x1b" not in ended.err


def test_delete_without_terminal_is_refused(cli: Cli) -> None:
    assert cli("vm.delete").code == 2
    assert cli("vm.delete", "--yes", "--json").document == {"deleted": True}


def test_program_name_is_that_of_the_call(cli: Cli) -> None:
    assert cli("vm.create", "--json", program="invoke").document["argv0"] == "invoke"
    assert cli("vm.create", "--json", program="provision").document["argv0"] == "provision"


# --- ends -----------------------------------------------------------------------------------------


def test_interrupt_exits_130(cli: Cli) -> None:
    ended = cli("mps.disable", "--json")
    assert ended.code == 130
    assert ended.document["error"]["what"] == "interrupted"


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_termination_signal_prints_recap(
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


@pytest.mark.slow
def test_nohup_ignores_hangup(project: Path, argv: Callable[..., list[str]]) -> None:
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


@pytest.mark.slow
def test_run_continues_when_stdout_reader_is_gone(
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


def test_closed_pipe_prints_no_traceback(project: Path, argv: Callable[..., list[str]]) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "text"), [(b"YES\n", "deleted"), (b"\n", "kept")])
def test_delete_asks_on_terminal(
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


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_into_closed_pipe_prints_no_traceback(
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


def test_run_writes_history(cli: Cli, tmp_path: Path) -> None:
    cli("vm.provision", env={"XDG_STATE_HOME": str(tmp_path)})
    (file,) = tmp_path.glob("provision/projects/*/runs/*.jsonl")
    assert file.stat().st_mode & 0o077 == 0
    assert '"task": "vm.provision"' in file.read_text().splitlines()[0]
    assert '"event": "run-finished"' in file.read_text().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_opened_on_null(
    project: Path, argv: Callable[..., list[str]], program: str, closed: str
) -> None:
    """As under cron: no error, and a child's output does not go into a file that we opened."""
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


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_full_disk_behind_stdout_is_reported(
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
        "error: vm.list: standard output could not be written\n"
        "  why: [Errno 28] No space left on device\n  try: df -h\n" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_unwritable_state_is_reported_as_file_error(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = cli("mock.up", env={"XDG_STATE_HOME": str(tmp_path / "file")})
    assert ended.code == 1
    assert ended.three_lines[:2] == [
        f"error: {tmp_path}/file/provision: this machine refuses a file",
        "  why: Not a directory",
    ]
    assert "XDG_STATE_HOME" in ended.three_lines[2]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_characters_outside_locale_are_escaped(
    project: Path, argv: Callable[..., list[str]], program: str
) -> None:
    """The note contains an ö, which ASCII lacks."""
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


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("vm.creat",), "vm.create, or provision --list"),
        (("vm.create", "--ttll", "3h"), "--ttl, or provision vm.create --help"),
        (("vm.list", "--host", "x"), "provision vm.list --help"),
        (("vm.create", "--gpu"), "provision vm.create --help"),
        (("--nonsense",), "provision --help"),
    ],
)
def test_unknown_task_or_flag_is_answered_with_a_remedy(
    cli: Cli, words: tuple[str, ...], remedy: str
) -> None:
    ended = cli(*words)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1] == f"  try: {remedy}"
    assert "<Argument" not in ended.err
