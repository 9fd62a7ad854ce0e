"""The GPU, its driver, and proof that the driver works."""

from __future__ import annotations

from provision.resources.driver.driver import DRIVER_DIR, Driver
from provision.resources.driver.gpu import Gpu
from provision.resources.driver.proof import NvidiaSmi

__all__ = ["DRIVER_DIR", "Driver", "Gpu", "NvidiaSmi"]
