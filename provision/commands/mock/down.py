"""`mock.down`: stop the embedded mock."""

from __future__ import annotations

from provision.project.mock import folder
from provision.project.project import Done, Project


def mock_down(project: Project) -> Done:
    """Stop the mock; its state stays."""
    from provision.testing import daemon

    stopped = daemon.down(folder(project))
    return Done(
        {"stopped": stopped}, text="the mock is stopped" if stopped else "the mock was not running"
    )
