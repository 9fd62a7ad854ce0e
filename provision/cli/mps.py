"""NVIDIA MPS in the container: one GPU shared by many processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run


@command("mps.enable", targets=True)
def enable(run: Run) -> Done:
    """Start the MPS daemon and prove that it answers."""
    from provision import app

    return app.mps_enable(run.session, targets=run.targets)


@command("mps.status", targets=True)
def status(run: Run) -> Done:
    """Show daemon, server, compute mode and attached clients."""
    from provision import app

    return app.mps_status(run.session, targets=run.targets)


@command("mps.disable", targets=True)
def disable(run: Run) -> Done:
    """Stop the MPS daemon; compute mode and files end as they were found."""
    from provision import app

    return app.mps_disable(run.session, targets=run.targets)
