"""How the setting `image` refers to an image: by name, by family, or by path. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

COS_PROJECT = "cos-cloud"
"""The project that publishes Container-Optimized OS."""
COS_FAMILY = re.compile(r"cos-(stable|beta|dev|\d+-lts|arm64-.+)\Z")
"""Image families of Container-Optimized OS; any other name beginning with `cos-` is an image."""


@dataclass(frozen=True)
class ImageRef:
    """An image by name or by family in a project; a family is resolved to a name before use."""

    project: str
    name: str
    is_family: bool

    @property
    def path(self) -> str:
        """The partial URL that the field `sourceImage` takes."""
        family = "family/" if self.is_family else ""
        return f"projects/{self.project}/global/images/{family}{self.name}"


def image_ref(image: str, project: str = "") -> ImageRef:
    """Parse the setting `image`, by default an image or family of Container-Optimized OS.

    Forms: `cos-125-lts`, `cos-125-19216-655-28`, `family/NAME`, and the path
    `projects/P/global/images/[family/]NAME`.
    """
    path = re.fullmatch(
        r"(?:https://\S+?/)?projects/([^/]+)/global/images/(family/)?([^/]+)", image
    )
    if path:
        return ImageRef(path[1], path[3], bool(path[2]))
    if image.startswith("family/"):
        return ImageRef(project or COS_PROJECT, image.removeprefix("family/"), True)
    return ImageRef(project or COS_PROJECT, image, COS_FAMILY.match(image) is not None)
