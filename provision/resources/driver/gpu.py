"""The NVIDIA GPUs on the PCI bus. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Script, fields, script

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Gpu(Resource):
    """At least `count` NVIDIA GPUs. No script can add one."""

    count: int = 1

    def probe(self) -> Script:
        """Print the GPUs of the PCI bus and the number of their device nodes."""
        return script(HERE / "count_gpus.sh", uses=["core/pci_gpus.sh"])

    def read(self, text: str) -> State | None:
        """`{"enough", "gpus"}`; on a host that hides its PCI bus the device nodes count."""
        found = fields(text)
        gpus = max(len(found["gpus"].split()), int(found.get("nodes", "0")))
        return {"enough": gpus >= self.count, "gpus": gpus}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"enough": True}`."""
        return {"enough": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """None."""
        return None

    def diagnose(self, output: str, actual: State | None) -> Diagnosis:  # noqa: ARG002
        """No GPU, or too few."""
        found = (actual or {}).get("gpus", 0)
        return Diagnosis(
            f"the host has {found} NVIDIA GPUs, {self.count} wanted",
            "invoke vm.show   (which GPU the VM was made with), or set gpu_count",
        )
