"""What the tests in this folder share."""

from __future__ import annotations

from tests.shells.shells import scratch, shell

__all__ = ["scratch", "shell"]
