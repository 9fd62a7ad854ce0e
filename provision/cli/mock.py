"""The embedded mock: a Compute Engine API and SSH hosts on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import Shape

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run


@command(Shape("mock.up"))
def up(run: Run) -> Done:
    """Start the mock; tasks without a project do so themselves."""
    from provision import app

    return app.mock_up(run.session)


@command(Shape("mock.status", result=True))
def status(run: Run) -> Done:
    """Say whether the mock runs and where."""
    from provision import app

    return app.mock_status(run.session)


@command(Shape("mock.down"))
def down(run: Run) -> Done:
    """Stop the mock; its state is kept."""
    from provision import app

    return app.mock_down(run.session)
