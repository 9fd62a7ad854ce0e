"""The worker image: rendered from a template, built on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import Shape

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run


@command(Shape("image.render", result=True), about={"output": "folder to write it into, instead of printing it"})
def render(run: Run, *, output: str | None = None) -> Done:
    """Render the Dockerfile."""
    from provision import app

    return app.image_render(run.session, output=output)


@command(Shape("image.build", targets=True))
def build(run: Run) -> Done:
    """Build the worker image on the host, or pull it."""
    from provision import app

    return app.image_build(run.session, targets=run.targets)
