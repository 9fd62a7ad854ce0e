"""What can be on a host. Each is a frozen value that follows `provision.core.resource.Resource`."""

from __future__ import annotations

from provision.resources.boot import BootEnded, BootFragment, BootRunner
from provision.resources.container import Container, NoContainer, Siblings
from provision.resources.docker import BuiltImage, DockerEngine, PulledImage, RegistryLogin
from provision.resources.driver import Driver, Gpu, NvidiaSmi
from provision.resources.file import Directory, File
from provision.resources.idle import IdleStop
from provision.resources.mount import ExecBindMount
from provision.resources.unit import Unit

__all__ = [
    "BootEnded",
    "BootFragment",
    "BootRunner",
    "BuiltImage",
    "Container",
    "Directory",
    "DockerEngine",
    "Driver",
    "ExecBindMount",
    "File",
    "Gpu",
    "IdleStop",
    "NoContainer",
    "NvidiaSmi",
    "PulledImage",
    "RegistryLogin",
    "Siblings",
    "Unit",
]
