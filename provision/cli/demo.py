"""A tour of the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import Run, command

if TYPE_CHECKING:
    from provision.app import Done


@command("demo")
def demo(run: Run) -> Done:
    """Walk the main job on a private mock that is removed afterwards; nothing is billed."""
    from provision import app

    return app.demo(run.session)
