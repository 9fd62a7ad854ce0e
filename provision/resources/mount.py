"""The bind mount that makes a folder of a noexec file system executable. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import RemotePath, Script, fields, script

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class ExecBindMount(Resource):
    """`path` bind-mounted onto itself exactly once, and executable.

    Container-Optimized OS mounts /var noexec; the documented remedy is `mount --bind DIR DIR` and
    `mount -o remount,exec DIR` (Google: "Run GPU workloads on Container-Optimized OS"). On other
    systems nothing is mounted.
    """

    path: str

    def probe(self) -> Script:
        """Print how many mounts lie on the path, and whether the topmost is executable."""
        return script(HERE / "mount_probe.sh", path=RemotePath(self.path))

    def read(self, text: str) -> State | None:
        """`{"layers", "exec"}`."""
        found = fields(text)
        return {"layers": int(found["layers"]), "exec": found.get("exec") == "yes"}

    def desired(self, facts: Facts) -> State:
        """One executable layer on Container-Optimized OS; any state elsewhere."""
        return {"layers": 1, "exec": True} if facts.is_cos else {}

    def ensure(self, facts: Facts) -> Script | None:
        """Unmount stacked layers, bind where there is none, remount; None on other systems."""
        return (
            script(HERE / "mount_ensure.sh", path=RemotePath(self.path)) if facts.is_cos else None
        )
