"""The facts of a host: read in exchange 1 beside every probe, and again after every change. Pure."""

from __future__ import annotations

from pathlib import Path

from provision.core.model import Facts
from provision.core.shell import Script, fields, script

HERE = Path(__file__).parent
FACTS: Script = script(
    HERE / "facts.sh",
    uses=["core/os_release.sh", "core/pci_gpus.sh", "core/loaded_driver.sh"],
)


def read_facts(text: str) -> Facts:
    """What `FACTS` printed. What is missing or not a number stays at its default."""
    found = fields(text)

    def number(key: str, default: int = 0) -> int:
        value = found.get(key, "").strip()
        return int(value) if value.isascii() and value.isdigit() else default

    return Facts(
        os_id=found.get("ID", ""),
        os_version=found.get("VERSION_ID", ""),
        build_id=found.get("BUILD_ID", ""),
        arch=found.get("arch", ""),
        kernel=found.get("kernel", ""),
        cpus=number("cpus"),
        memory_mib=number("memory_mib"),
        uid=number("uid", -1),
        user=found.get("user", ""),
        gpus=tuple(found.get("gpus", "").split()),
        driver_loaded=found.get("driver_loaded", "").strip(),
        boot_id=found.get("boot_id", "").strip(),
    )
