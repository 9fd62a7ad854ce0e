"""Proof that the driver works. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import RemotePath, Script, script
from provision.resources.driver.driver import DRIVER_DIR

_PROBE = """
export LD_LIBRARY_PATH="$dir/lib64"
"$dir/bin/nvidia-smi" --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1
echo "status=$?"
"""


@dataclass(frozen=True, kw_only=True)
class NvidiaSmi(Resource):
    """`nvidia-smi` of the driver folder runs and reports a GPU."""

    directory: str = DRIVER_DIR.path

    def probe(self) -> Script:
        """Run nvidia-smi; its exit status and its output are the state."""
        return script(_PROBE, dir=RemotePath(self.directory))

    def read(self, text: str) -> State | None:
        """`{"runs", "gpu", "driver", "memory", "gpus"}`; `{"runs", "text"}` where it failed."""
        body, _, status = text.rpartition("status=")
        lines = body.strip().splitlines()
        if status.strip() != "0" or not lines:
            return {"runs": False, "text": body.strip()}
        name, _, rest = lines[0].partition(", ")
        driver, _, memory = rest.partition(", ")
        return {"runs": True, "gpu": name, "driver": driver, "memory": memory, "gpus": len(lines)}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"runs": True}`."""
        return {"runs": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """None: `Driver` and `ExecBindMount` make it run."""
        return None

    def diagnose(self, output: str, actual: State | None) -> Diagnosis:  # noqa: ARG002
        """Not found, not executable, or a library of another version."""
        text = str((actual or {}).get("text", ""))
        last_line = text.splitlines()[-1] if text else "it printed nothing"
        if "ermission denied" in text:
            return Diagnosis(
                f"nvidia-smi is not executable: the driver folder is mounted noexec ({last_line})",
                "invoke vm.provision",
            )
        if "version mismatch" in text:
            return Diagnosis(
                f"the loaded driver and its libraries differ ({last_line})",
                "invoke vm.ssh -- sudo reboot, then invoke vm.provision",
            )
        return Diagnosis(f"nvidia-smi does not run: {last_line}", "invoke vm.provision")
