"""The embedded mock: a Compute Engine API and SSH hosts on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run


@command("mock.up")
def up(run: Run) -> Done:
    """Start the mock in the background; tasks do it by themselves when no project is set."""
    from provision import app

    return app.mock_up(run.session)


@command("mock.status")
def status(run: Run) -> Done:
    """Say whether the mock runs, where, and what it holds."""
    from provision import app

    return app.mock_status(run.session)


@command("mock.down")
def down(run: Run) -> Done:
    """Stop the mock; its state is kept."""
    from provision import app

    return app.mock_down(run.session)
