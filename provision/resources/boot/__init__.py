"""What brings a host back after a reboot: the boot script, its fragments, and the wait for it."""

from __future__ import annotations

from provision.resources.boot.ended import BootEnded
from provision.resources.boot.fragment import (
    BOOT_SCRIPT,
    BOOT_TEXT,
    FRAGMENTS,
    STATE_DIR,
    BootFragment,
    BootRunner,
    fragment,
    fragment_text,
)

__all__ = [
    "BOOT_SCRIPT",
    "BOOT_TEXT",
    "FRAGMENTS",
    "STATE_DIR",
    "BootEnded",
    "BootFragment",
    "BootRunner",
    "fragment",
    "fragment_text",
]
