"""The settings: one frozen, typed model, and the levels it is merged from.

`Settings.from_levels` is all that others need. Importing this package imports pydantic (0.1 s), so
the command line does it late.
"""

from __future__ import annotations

from provision.settings.levels import Leaf, Level, env_levels, leaves, text_level
from provision.settings.model import (
    DataflowSettings,
    HostSettings,
    MpsSettings,
    Settings,
    WorkerSettings,
)

__all__ = [
    "DataflowSettings",
    "HostSettings",
    "Leaf",
    "Level",
    "MpsSettings",
    "Settings",
    "WorkerSettings",
    "env_levels",
    "leaves",
    "text_level",
]
