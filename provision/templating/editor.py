"""devcontainer.json, from which editors make the worker container."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provision.core.errors import UsageError
from provision.templating.environment import render


def devcontainer(
    *,
    name: str,
    image: str,
    options: Sequence[str],
    volume: str,
    folder: str,
    project_dir: Path | None = None,
) -> str:
    """devcontainer.json for a container of `image` with the `docker run` `options`.

    The editor mounts the Docker volume `volume` at `folder` and works there. Raises `UsageError`
    for a value with `${`, which the editor would replace as a variable.
    """
    variables = [word for word in (*options, image, volume) if "${" in word]
    if variables:
        raise UsageError(
            "the container cannot be described to an editor",
            where="devcontainer.json",
            why="; ".join(f"{word!r} holds '${{'" for word in variables),
        )
    values = {
        "name": name,
        "image": image,
        "run_args": list(options),
        "workspace_mount": f"source={volume},target={folder},type=volume",
        "workspace_folder": folder,
    }
    return render("devcontainer.json.j2", values, project_dir=project_dir)
