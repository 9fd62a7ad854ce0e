"""A tour of the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run


@command("demo")
def demo(run: Run) -> Done:
    """Walk the main job on a private mock that is removed afterwards; nothing is billed."""
    from provision import app

    return app.demo(run.session)
