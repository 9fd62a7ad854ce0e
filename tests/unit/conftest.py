"""What the tests in this folder share."""

from __future__ import annotations

from tests.shells.worlds import scratch, world

__all__ = ["scratch", "world"]
