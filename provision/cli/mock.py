"""The embedded mock: a Compute Engine API and SSH hosts on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult


@command(TaskSpec("mock.up"))
def up(run: Run) -> TaskResult:
    """Start the mock; tasks without a project do so by themselves."""
    from provision.commands.mock.up import mock_up

    return mock_up(run.project)


@command(TaskSpec("mock.status", prints_result=True))
def status(run: Run) -> TaskResult:
    """Show whether the mock runs, and where."""
    from provision.commands.mock.status import mock_status

    return mock_status(run.project)


@command(TaskSpec("mock.down"))
def down(run: Run) -> TaskResult:
    """Stop the mock; its state is kept."""
    from provision.commands.mock.down import mock_down

    return mock_down(run.project)
