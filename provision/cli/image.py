"""The worker image: rendered from a template, built on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run


@command("image.render", about={"output": "folder to write the files into; without it the Dockerfile is printed"})
def render(run: Run, *, output: str | None = None) -> Done:
    """Render the Dockerfile and what belongs beside it."""
    from provision import app

    return app.image_render(run.session, output=output)


@command("image.build", targets=True)
def build(run: Run) -> Done:
    """Build the worker image on the host, or pull the one of the settings."""
    from provision import app

    return app.image_build(run.session, targets=run.targets)
