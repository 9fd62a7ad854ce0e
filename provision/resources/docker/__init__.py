"""The Docker Engine of a host, its login to registries, and its images."""

from __future__ import annotations

from provision.resources.docker.engine import DockerEngine
from provision.resources.docker.images import BuiltImage, PulledImage
from provision.resources.docker.login import RegistryLogin

__all__ = ["BuiltImage", "DockerEngine", "PulledImage", "RegistryLogin"]
