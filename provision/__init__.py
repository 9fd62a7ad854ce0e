"""A Dataflow GPU worker of your own, in one command.

These are the names that a recipe of your own needs. Each is imported when it is first used, so
that `import provision` takes no time:

from provision import Directory, Facts, File, RemotePath, Resource, Script, Settings, State, script
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provision.core.errors import ProvisionError
    from provision.core.model import Change, Facts, Host, HostReport, Outcome, Scalar, State, Status
    from provision.core.resource import Diagnosis, Resource
    from provision.core.shell import RemotePath, Script, Secret, command, fields, join, script
    from provision.resources import Container, Directory, ExecBindMount, File, PulledImage, Unit
    from provision.settings import Settings

_EXPORTS = {
    "provision.core.errors": ("ProvisionError",),
    "provision.core.model": (
        "Change",
        "Facts",
        "Host",
        "HostReport",
        "Outcome",
        "Scalar",
        "State",
        "Status",
    ),
    "provision.core.resource": ("Diagnosis", "Resource"),
    "provision.resources": (
        "Container",
        "Directory",
        "ExecBindMount",
        "File",
        "PulledImage",
        "Unit",
    ),
    "provision.settings": ("Settings",),
    "provision.core.shell": (
        "RemotePath",
        "Script",
        "Secret",
        "command",
        "fields",
        "join",
        "script",
    ),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "Change",
    "Container",
    "Diagnosis",
    "Directory",
    "ExecBindMount",
    "Facts",
    "File",
    "Host",
    "HostReport",
    "Outcome",
    "ProvisionError",
    "PulledImage",
    "RemotePath",
    "Resource",
    "Scalar",
    "Script",
    "Secret",
    "Settings",
    "State",
    "Status",
    "Unit",
    "command",
    "fields",
    "join",
    "script",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
