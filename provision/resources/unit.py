"""systemd units. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import RemotePath, Script, fields, payload, script
from provision.resources.file import STAGE_FILE, decode_file

HERE = Path(__file__).parent
UNIT_FOLDER = RemotePath("/etc/systemd/system")


@dataclass(frozen=True, kw_only=True)
class Unit(Resource):
    """A unit file under /etc/systemd/system that systemd has read, enabled, running if `active`.

    On Container-Optimized OS a reboot loses /etc, and with it that the unit is enabled (Google:
    "Disks and file system overview"): there cloud-init writes the unit again at every boot.
    """

    unit: str
    content: str = field(repr=False)
    enabled: bool = True
    active: bool = False

    def probe(self) -> Script:
        """Print the file, and whether systemd reports it enabled, active and read."""
        return script(HERE / "unit_probe.sh", path=UNIT_FOLDER / self.unit, unit=self.unit)

    def read(self, text: str) -> State | None:
        """`{"content", "loaded", "enabled", "active"}`; None without the file.

        `loaded` is False after a run that was interrupted before `daemon-reload`. Raises
        `ProbeUnreadable` when half of the file is missing.
        """
        if not text.strip():
            return None
        head, _, encoded = text.partition("content=\n")
        found = fields(head)
        return {
            "content": decode_file(encoded, where=self.unit).decode("utf-8", "replace"),
            "loaded": found.get("NeedDaemonReload") != "yes",
            "enabled": found.get("enabled", "").startswith(("enabled", "static", "alias")),
            "active": found.get("ActiveState") == "active",
        }

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """The content, loaded; enabled and active where asked for."""
        state: dict[str, str | bool] = {"content": self.content, "loaded": True}
        if self.enabled:
            state["enabled"] = True
        if self.active:
            state["active"] = True
        return state

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Write, reload, enable, start."""
        return script(
            HERE / "unit_ensure.sh",
            uses=[STAGE_FILE],
            path=UNIT_FOLDER / self.unit,
            unit=self.unit,
            data=payload(self.content.encode()),
            enabled="yes" if self.enabled else "",
            active="yes" if self.active else "",
        )
