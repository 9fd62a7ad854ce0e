"""A tour of the main job on the mock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult


@command(TaskSpec("demo", streams=True))
def demo(run: Run) -> TaskResult:
    """Walk the main job on a mock of its own."""
    from provision.commands.demo import demo

    return demo(run.project)
