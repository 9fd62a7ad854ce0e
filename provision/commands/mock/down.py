"""`mock.down`: stop the embedded mock."""

from __future__ import annotations

from provision.commands.shared.result import TaskResult
from provision.project.project import Project


def mock_down(project: Project) -> TaskResult:
    """Stop the mock; its state stays."""
    from provision.testing import background

    stopped = background.down(project.mock.folder)
    return TaskResult(
        {"stopped": stopped}, text="the mock is stopped" if stopped else "the mock was not running"
    )
