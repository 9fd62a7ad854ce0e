"""NVIDIA MPS on a host: the control daemon in its container, the compute mode of the GPU, and what they say. Pure."""

from __future__ import annotations

from provision.resources.mps.compute_mode import ComputeMode
from provision.resources.mps.daemon import MpsAsChosen, MpsDaemon
from provision.resources.mps.outside import MpsOutside
from provision.resources.mps.status import MpsClient, MpsStatus, read_status, status_script

__all__ = ["ComputeMode", "MpsAsChosen", "MpsClient", "MpsDaemon", "MpsOutside", "MpsStatus", "read_status", "status_script"]
