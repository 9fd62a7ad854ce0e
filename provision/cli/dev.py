"""The development container: start it, run code in it, enter it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run


@command("dev.up", targets=True)
def up(run: Run) -> Done:
    """Bring up host, worker image and container."""
    from provision import app

    return app.dev_up(run.session, targets=run.targets)


@command("dev.exec", targets=True, words="a command", words_required=True, program=True)
def exec_(run: Run) -> Done:
    """Run the command given after -- in the container; returns its status."""
    from provision import app

    return app.dev_exec(run.session, targets=run.targets, words=run.words)


@command("dev.run", targets=True, words="arguments", program=True, about={"file": "a Python file of the project"})
def run(run: Run, file: str) -> Done:
    """Send the project's files and run FILE in the container, with the arguments after --; returns its status."""
    from provision import app

    return app.dev_run(run.session, targets=run.targets, file=file, words=run.words)


@command("dev.shell", targets=True, program=True)
def shell(run: Run) -> Done:
    """A shell in the container."""
    from provision import app

    return app.dev_shell(run.session, targets=run.targets)


@command("dev.down", targets=True)
def down(run: Run) -> Done:
    """Stop and remove the container."""
    from provision import app

    return app.dev_down(run.session, targets=run.targets)


@command("dev.devcontainer", targets=True)
def devcontainer(run: Run) -> Done:
    """Render devcontainer.json for the same container, for editors that attach to it."""
    from provision import app

    return app.dev_devcontainer(run.session, targets=run.targets)
