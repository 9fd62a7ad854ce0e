"""The task `doctor`: all checks that need no VM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult


@command(TaskSpec("doctor", prints_result=True, settings=("zones", "machine_type", "gpu")))
def doctor(run: Run) -> TaskResult:
    """Check all that can be checked before money is spent.

    Credentials, project, zones, quotas, image, network, tools: each line is a check with its fact,
    and with a remedy if it fails.
    """
    from provision.commands.doctor.doctor import doctor

    return doctor(run.project)
