"""`mock.up`: start the embedded mock."""

from __future__ import annotations

from provision.commands.shared.result import TaskResult
from provision.project.project import Project


def mock_up(project: Project) -> TaskResult:
    """Start the mock, or find it running."""
    from provision.testing import background

    state_dir = project.mock.folder
    state = background.up(state_dir)
    document = {
        "compute_endpoint": state.compute_endpoint,
        "state": str(state_dir),
        "pid": state.pid,
    }
    return TaskResult(document, text=f"mock up: {state.compute_endpoint} (state in {state_dir})")
