"""The development container: start it, run code in it, open a shell in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult


@command(TaskSpec("dev.up", targets=True))
def up(run: Run) -> TaskResult:
    """Bring up host, worker image and container.

    A changed image or setting replaces the container; otherwise it stays as it is.
    """
    from provision.commands.dev.up import dev_up

    return dev_up(run.project, targets=run.targets)


@command(
    TaskSpec(
        "dev.exec",
        targets=True,
        words="a command",
        words_required=True,
        runs_program=True,
        dry_run=False,
        single_host=True,
    ),
    about={"clients": "the number of processes to run at once; each line begins with its number"},
)
def exec_(run: Run, *, clients: str | None = None) -> TaskResult:
    """Run the command after -- in the container.

    Its output is streamed and its status returned, of several the worst; 125 when it could not be
    run. It reads the standard input of this task if that is a pipe or a file; with --clients, and
    on a terminal (use dev.shell there), it reads nothing.
    """
    from provision.commands.dev.exec import dev_exec

    return dev_exec(run.project, targets=run.targets, words=run.words, count=_count(clients))


@command(
    TaskSpec(
        "dev.run",
        targets=True,
        words="arguments",
        runs_program=True,
        dry_run=False,
        single_host=True,
    ),
    about={
        "file": "a Python file of the project",
        "clients": "the number of processes to run at once; each line begins with its number",
    },
)
def run(run: Run, file: str, *, clients: str | None = None) -> TaskResult:
    """Send the project and run FILE -- ARGS in the container.

    All files that git would track are sent. Output is streamed and the program's status returned,
    of several the worst; 125 when it could not be run. The program reads the standard input of this
    task, as with dev.exec.
    """
    from provision.commands.dev.run import dev_run

    return dev_run(
        run.project, targets=run.targets, file=file, words=run.words, count=_count(clients)
    )


def _count(text: str | None) -> int | None:
    """Return the number of processes; None when `--clients` is not given."""
    from provision.cli.flag_values import parse_count

    return parse_count("--clients", text, least=1)


@command(TaskSpec("dev.shell", targets=True, runs_program=True, dry_run=False, single_host=True))
def shell(run: Run) -> TaskResult:
    """Open a shell in the container."""
    from provision.commands.dev.shell import dev_shell

    return dev_shell(run.project, targets=run.targets)


@command(TaskSpec("dev.down", targets=True))
def down(run: Run) -> TaskResult:
    """Stop and remove the container."""
    from provision.commands.dev.down import dev_down

    return dev_down(run.project, targets=run.targets)


@command(TaskSpec("dev.devcontainer", targets=True, prints_result=True, single_host=True))
def devcontainer(run: Run) -> TaskResult:
    """Render devcontainer.json for the same container."""
    from provision.commands.dev.devcontainer import dev_devcontainer

    return dev_devcontainer(run.project, targets=run.targets)
