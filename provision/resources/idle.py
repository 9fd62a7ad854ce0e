"""The timer of a VM that powers it off when it is idle. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import Argument, Script, fields, payload, script
from provision.resources.boot import STATE_DIR
from provision.resources.file import STAGE_FILE, decode_file
from provision.resources.unit import UNIT_FOLDER

HERE = Path(__file__).parent
TIMER = "provision-idle.timer"
FILES = ("script", "service", "timer")
_PATHS: Mapping[str, Argument] = {
    "script": STATE_DIR / "idle.sh",
    "service": UNIT_FOLDER / "provision-idle.service",
    "timer": UNIT_FOLDER / TIMER,
}


@dataclass(frozen=True, kw_only=True)
class IdleStop(Resource):
    """Script, service and timer that power an idle VM off; with `present` False, none of them.

    `texts` has the text of each of `FILES`. A VM that powers itself off is TERMINATED, like one
    that was stopped (Compute Engine, "Stop a VM"). A reboot of Container-Optimized OS loses /etc,
    so the boot script writes the units again.
    """

    texts: Mapping[str, str] = field(repr=False)
    present: bool = True

    def probe(self) -> Script:
        """Print the three files, and whether the timer runs."""
        return script(HERE / "idle_probe.sh", unit=TIMER).with_bindings(_PATHS)

    def read(self, text: str) -> State | None:
        """`{"script", "service", "timer", "active"}`, without missing files; None without any.

        Raises `ProbeUnreadable` when half of a file is missing.
        """
        found = fields(text)
        if not found:
            return None
        texts = {
            key: decode_file(found[key], where=self.name).decode("utf-8", "replace")
            for key in FILES
            if key in found
        }
        return {**texts, "active": found.get("active") == "yes"}

    def desired(self, facts: Facts) -> State | None:  # noqa: ARG002
        """The files, and the timer running; None where they should be absent."""
        return {**self.texts, "active": True} if self.present else None

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Write, reload, start; or stop and remove."""
        if not self.present:
            return script(HERE / "idle_remove.sh", unit=TIMER).with_bindings(_PATHS)
        data = {f"{key}_data": payload(text.encode()) for key, text in self.texts.items()}
        body = script(HERE / "idle_ensure.sh", uses=[STAGE_FILE], unit=TIMER)
        return body.with_bindings({**_PATHS, **data})
