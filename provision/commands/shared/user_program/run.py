"""Run the user's program in a container: started, streamed, its status returned."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.commands.shared.result import TaskResult
from provision.commands.shared.user_program.standard_input import run_reading_program
from provision.commands.shared.worker_container import container_not_running
from provision.core.job import script_command
from provision.core.model import Sink, Transport
from provision.core.shell import Argument, Script, script, shell_text
from provision.mps.daemon.daemon import alive_text
from provision.project.project import Project
from provision.recipes.mps import FRAGMENT as MPS_FRAGMENT
from provision.recipes.worker import daemon_container_name
from provision.resources.boot import FRAGMENTS
from provision.resources.container import IS_RUNNING, WORKSPACE

HERE = Path(__file__).parent
PREPARE = (IS_RUNNING, "commands/shared/user_program/prepare.sh")
"""The files of shared functions that start a program."""
LONGEST_RUN_S = 30 * 86_400.0
"""The transport requires a time limit; the user's program has none."""
_NOTHING_TO_PREPARE: Mapping[str, Argument] = {
    "mps_fragment": "",
    "daemon": "",
    "daemon_runs": "",
    "warning": "",
    "hidden": "",
}


def run_program(
    project: Project,
    transport: Transport,
    container: str,
    words: Sequence[str],
    *,
    stdin: int | None = None,
) -> TaskResult:
    """Run `words` in the container, stream the output, and return the program's status.

    The program reads the file descriptor `stdin` until that ends, or nothing. It ends with the
    connection. Raises `HostError` when the container does not run, `UsageError` for a program with
    `stdin` whose command is too long, and errors of the connection.
    """
    token = secrets.token_hex(8)
    stderr = ProgramStderr(token, project.stderr)
    bindings = program_bindings(project)
    if stdin is None:
        body = program_script(container, words, token, bindings)
        command, script_input = script_command(body, become=transport.host.become)
        status = transport.exchange(
            command,
            script_input,
            on_stdout=project.stdout,
            on_stderr=stderr,
            timeout_s=LONGEST_RUN_S,
        )
    else:
        status = run_reading_program(
            transport,
            _reading_script(container, words, token, bindings),
            script(HERE / "watch.sh", name=container, token=token, end=end_text()),
            stdin,
            on_stdout=project.stdout,
            on_stderr=stderr,
            timeout_s=LONGEST_RUN_S,
        )
    if stderr.is_not_running:
        raise container_not_running(project, transport)
    return program_result(status)


def program_result(status: int) -> TaskResult:
    """The result of a task that ended with the status of the user's program."""
    return TaskResult({"status": status, "failed_in": "program" if status else None}, status)


class ProgramStderr:
    """Forwards the standard error of a program, without the script's own line.

    `is_not_running` is True after that line: the script found the container stopped.
    """

    def __init__(self, token: str, sink: Sink) -> None:
        self._own_line = f"{token} not-running\n".encode()
        self._sink = sink
        self.is_not_running = False

    def __call__(self, data: bytes) -> None:
        """Forward some bytes."""
        if self._own_line in data:
            self.is_not_running = True
            data = data.replace(self._own_line, b"")
        if data:
            self._sink(data)


# --- scripts --------------------------------------------------------------------------------------


def program_script(
    container: str,
    words: Sequence[str],
    token: str,
    bindings: Mapping[str, Argument] = _NOTHING_TO_PREPARE,
) -> Script:
    """The script for the host that runs `words` in the container, and ends them when it is ended.

    `token` marks the processes. `bindings` are those of `program_bindings`.
    """
    return script(
        HERE / "run.sh",
        uses=PREPARE,
        argv=words,
        name=container,
        token=token,
        dir=WORKSPACE,
        end=end_text(),
    ).with_bindings(bindings)


def _reading_script(
    container: str, words: Sequence[str], token: str, bindings: Mapping[str, Argument]
) -> Script:
    """As `program_script`, for a program that reads the script's standard input."""
    body = script(
        HERE / "run_reading.sh",
        uses=PREPARE,
        argv=words,
        name=container,
        token=token,
        dir=WORKSPACE,
    )
    return body.with_bindings(bindings)


def end_text() -> str:
    """The script for the container that ends the processes of a run; its argument is the token."""
    return shell_text(HERE / "end.sh")


def program_bindings(project: Project) -> dict[str, Argument]:
    """The variables of `prepare.sh`, for every script that starts a program of the user.

    `hidden` is a variable that programs must not see. With `mps.gpu` the daemon alone gets the GPU:
    clients number its devices from 0, so an index that the image sets refers to none of them
    (NVIDIA MPS guide, environment variables). `docker exec --env NAME` removes it (docs/facts.md).

    `warning` is printed where MPS was enabled and no daemon runs, as after a restart of its
    container: CUDA programs then run without MPS and report nothing (NVIDIA MPS guide).
    """
    settings = project.settings
    warning = (
        "MPS is enabled here, but no daemon runs: CUDA programs run without it; invoke mps.enable"
    )
    return {
        "hidden": "CUDA_VISIBLE_DEVICES" if settings.mps.gpu else "",
        "mps_fragment": FRAGMENTS / MPS_FRAGMENT,
        "daemon": daemon_container_name(settings),
        "daemon_runs": alive_text(),
        "warning": project.with_program_name(warning),
    }
