"""The facts of a host: read in exchange 1 with every probe, and again after every change. Pure."""

from __future__ import annotations

from pathlib import Path

from provision.core.model import Facts
from provision.core.parsing import parse_int
from provision.core.shell import Script, fields, script

HERE = Path(__file__).parent
FACTS: Script = script(
    HERE / "facts.sh",
    uses=["core/os_release.sh", "core/pci_gpus.sh", "core/loaded_driver.sh"],
)


def read_facts(text: str) -> Facts:
    """The facts that `FACTS` printed. A missing value or number keeps its default."""
    values = fields(text)

    def number(key: str, default: int = 0) -> int:
        value = parse_int(values.get(key, ""))
        return default if value is None else value

    return Facts(
        os_id=values.get("ID", ""),
        os_version=values.get("VERSION_ID", ""),
        build_id=values.get("BUILD_ID", ""),
        arch=values.get("arch", ""),
        kernel=values.get("kernel", ""),
        cpus=number("cpus"),
        memory_mib=number("memory_mib"),
        uid=number("uid", -1),
        user=values.get("user", ""),
        gpus=tuple(values.get("gpus", "").split()),
        driver_loaded=values.get("driver_loaded", "").strip(),
        boot_id=values.get("boot_id", "").strip(),
    )
