"""The worker image: rendered from a template, built on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult


@command(
    TaskSpec("image.render", prints_result=True),
    about={"output": "the folder to write to, instead of printing"},
)
def render(run: Run, *, output: str | None = None) -> TaskResult:
    """Render the Dockerfile."""
    from provision.commands.image.render import image_render

    return image_render(run.project, output=output)


@command(TaskSpec("image.build", targets=True))
def build(run: Run) -> TaskResult:
    """Build the worker image on the host, or pull it."""
    from provision.commands.image.build import image_build

    return image_build(run.project, targets=run.targets)
