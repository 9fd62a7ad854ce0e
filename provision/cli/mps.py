"""NVIDIA MPS in the container: one GPU shared by many processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import Shape

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run


@command(Shape("mps.enable", targets=True))
def enable(run: Run) -> Done:
    """Start the MPS daemon and prove that it answers."""
    from provision import app

    return app.mps_enable(run.session, targets=run.targets)


@command(Shape("mps.status", targets=True, result=True))
def status(run: Run) -> Done:
    """Show daemon, server, compute mode and clients."""
    from provision import app

    return app.mps_status(run.session, targets=run.targets)


@command(Shape("mps.disable", targets=True))
def disable(run: Run) -> Done:
    """Stop the MPS daemon and leave all as it was found."""
    from provision import app

    return app.mps_disable(run.session, targets=run.targets)
