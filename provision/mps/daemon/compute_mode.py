"""The compute mode of the GPU: EXCLUSIVE_PROCESS where the settings ask for it. Pure.

Sources: the NVIDIA MPS guide ("when to use MPS") recommends EXCLUSIVE_PROCESS and does not require
it; it needs root, and with it a process that misses the daemon fails instead of running without
MPS. The mode stays on the GPU when the daemon ends, and then every second process fails with error
46 (docs/facts.md), so the mode that was found is recorded and restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import RemotePath, Script, fields, script
from provision.resources.boot import STATE_DIR
from provision.resources.driver import DRIVER_DIR

HERE = Path(__file__).parent
RECORD = STATE_DIR / "mps-compute-mode"
"""`UUID, mode` of each GPU that we changed, as it was found. The record outlives a reboot; the
GPU's mode does not."""

Mode = Literal["exclusive", "default", ""]
"""`exclusive`: EXCLUSIVE_PROCESS. `default`: as found, and usable. Empty: as found."""


@dataclass(frozen=True, kw_only=True)
class ComputeMode(Resource):
    """The compute mode `wanted` of the GPU `gpu` (index or UUID; empty for all).

    A GPU that is no longer chosen gets its own mode back. PROHIBITED is reported and not changed: a
    user chose it.
    """

    wanted: Mode = ""
    gpu: str = ""
    directory: str = DRIVER_DIR.path
    """The driver's folder."""

    def _wanted(self, facts: Facts) -> Mode:
        return self.wanted if facts.gpus or facts.driver_loaded else ""

    def probe(self) -> Script:
        """Print the mode of each GPU and the recorded modes."""
        return script(
            HERE / "probe_compute_mode.sh",
            uses=["resources/nvidia_smi.sh"],
            record=RECORD,
            driver=RemotePath(self.directory),
            device=self.gpu,
        )

    def read(self, text: str) -> State | None:
        """`{"mode", "changed_by_us", "others", "usable"}`.

        `others` lists recorded GPUs that are not among the chosen ones.
        """
        values = fields(text)
        modes = {key[5:]: value.strip() for key, value in values.items() if key.startswith("mode.")}
        recorded = {key[6:] for key in values if key.startswith("found.")}
        return {
            "mode": ", ".join(sorted(set(modes.values()))),
            "changed_by_us": "recorded" in values,
            "others": ", ".join(sorted(recorded - set(modes))) if modes else "",
            "usable": "Prohibited" not in modes.values(),
        }

    def desired(self, facts: Facts) -> State:
        """Exclusive and recorded; or not changed by us, and usable."""
        match self._wanted(facts):
            case "exclusive":
                return {"mode": "Exclusive_Process", "changed_by_us": True, "others": ""}
            case "default":
                return {"changed_by_us": False, "usable": True}
            case _:
                return {"changed_by_us": False}

    def ensure(self, facts: Facts) -> Script | None:
        """Record the mode that is found and set the wanted one; or restore the recorded one."""
        return script(
            HERE / "set_compute_mode.sh",
            uses=["resources/nvidia_smi.sh"],
            record=RECORD,
            driver=RemotePath(self.directory),
            device=self.gpu,
            wanted=self._wanted(facts),
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """PROHIBITED, or no right to set a mode."""
        if "Prohibited" in output:
            return Diagnosis(
                "the compute mode of the GPU is PROHIBITED: no process may use it",
                "sudo nvidia-smi -c DEFAULT   (on the host)",
            )
        if "Insufficient Permissions" in output:
            return Diagnosis(
                "only root may set the compute mode",
                "become: sudo   for this host in the settings",
            )
        return None
