"""The NVIDIA driver of a host. Pure.

Sources: Google, "Run GPU workloads on Container-Optimized OS" (cos-extensions, the driver folder,
device nodes); the public cos-gpu-installer repository (lock file, cache file, failure texts, exit
statuses).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import RemotePath, Script, fields, script
from provision.resources.driver.failures import diagnose_installation
from provision.resources.file import diagnose_full_disk

HERE = Path(__file__).parent
DRIVER_DIR = RemotePath("/var/lib/nvidia")
"""The folder into which Container-Optimized OS installs the driver."""
_RECORD = RemotePath("/var/lib/provision/driver")
_LOADED = "core/loaded_driver.sh"


@dataclass(frozen=True, kw_only=True)
class Driver(Resource):
    """The NVIDIA driver: installed for this build of the OS, loaded, its device nodes there.

    `version` is `default`, `latest`, a branch such as `R535`, or a full number. On hosts that are
    not Container-Optimized OS, or with `source="present"`, the host keeps its own driver, and its
    files are gathered in `directory`.
    """

    version: str = "default"
    source: str | None = None
    directory: str = DRIVER_DIR.path
    timeout_s: float = 1200.0
    pause_s: float = 15.0
    lock_tries: int = 60
    network_tries: int = 3

    def _is_installed_by_us(self, facts: Facts) -> bool:
        return self.source == "cos" or (self.source is None and facts.is_cos)

    def probe(self) -> Script:
        """Print the record, the installer's cache, the loaded version and the device nodes."""
        folder = RemotePath(self.directory)
        return script(HERE / "probe.sh", uses=[_LOADED], record=_RECORD, dir=folder)

    def read(self, text: str) -> State | None:
        """`{"asked", "version", "build_id", "installed", "gathered", "loaded", "devices"}`.

        None where the host has no trace of a driver.
        """
        found = fields(text)
        version, loaded = found.get("version", ""), found.get("loaded", "")
        if not found.get("asked") and not loaded and not found.get("smi"):
            return None
        installed = (
            found.get("smi") == "yes"
            and found.get("cache_version") == version
            and found.get("cache_build") == found.get("build_id")
        )
        return {
            "asked": found.get("asked"),
            "version": version or loaded or None,
            "build_id": found.get("build_id") or None,
            "installed": installed,
            "gathered": found.get("smi") == "yes" and found.get("libcuda") == "yes",
            "loaded": bool(loaded) and loaded == (version or loaded),
            "devices": found.get("devices") == "yes",
        }

    def desired(self, facts: Facts) -> State:
        """Loaded, with its device nodes; installed as asked for this BUILD_ID, or gathered."""
        if not self._is_installed_by_us(facts):
            return {"gathered": True, "loaded": True, "devices": True}
        return {
            "asked": self.version,
            "build_id": facts.build_id,
            "installed": True,
            "loaded": True,
            "devices": True,
        }

    def ensure(self, facts: Facts) -> Script | None:
        """Run the installer (seconds where it has cached the driver), or gather the host's own."""
        folder = RemotePath(self.directory)
        if not self._is_installed_by_us(facts):
            return script(HERE / "gather.sh", uses=[_LOADED], record=_RECORD, dir=folder)
        return script(
            HERE / "install.sh",
            uses=[_LOADED, "core/os_release.sh"],
            record=_RECORD,
            dir=folder,
            asked=self.version,
            pause=f"{self.pause_s:g}",
            lock_tries=self.lock_tries,
            network_tries=self.network_tries,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """The cause of a failure text of the installer, or a full disk."""
        return diagnose_installation(output) or diagnose_full_disk(output)
