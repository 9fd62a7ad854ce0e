"""image.render: the Dockerfile of the worker image."""

from __future__ import annotations

from pathlib import Path

from provision.commands.shared.result import TaskResult
from provision.commands.shared.worker_image import prepare_build
from provision.core.errors import UsageError
from provision.project.project import Project


def image_render(project: Project, output: str | None = None) -> TaskResult:
    """Print the Dockerfile, or write it into the folder `output`.

    Raises `UsageError` where the settings name an image, which is pulled and not built.
    """
    if project.settings.worker.image is not None:
        raise UsageError(
            "there is nothing to render",
            where="provision.worker.image",
            why=f"the image {project.settings.worker.image} is pulled as it is",
            fix="unset worker.image to build one",
        )
    build = prepare_build(project)
    document = {
        "reference": build.reference,
        "dockerfile": build.dockerfile,
        "context_bytes": len(build.context),
    }
    if output is None:
        return TaskResult(document, text=build.dockerfile.rstrip("\n"))
    path = Path(output) / "Dockerfile"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build.dockerfile, encoding="utf-8")
    return TaskResult({**document, "path": str(path)}, text=f"wrote {path}")
