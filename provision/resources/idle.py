"""The VM's own timer that powers it off when nobody uses it. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.core.errors import ProbeUnreadable
from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import RemotePath, Script, payload, script
from provision.resources.boot import STATE_DIR

TIMER = "provision-idle.timer"
SCRIPT = STATE_DIR / "idle.sh"
SERVICE_FILE = RemotePath("/etc/systemd/system/provision-idle.service")
TIMER_FILE = RemotePath("/etc/systemd/system") / TIMER
FILES = ("script", "service", "timer")

_PROBE = """
for pair in "script $script" "service $service" "timer $timer"; do
    path=${pair#* }
    if test -f "$path"; then echo "${pair%% *}=$(base64 <"$path" | tr -d '\\n')"; fi
done
if test "$(systemctl is-active "$unit" 2>/dev/null)" = active; then echo "active=yes"; fi
"""
_ENSURE = """
put() {
    mkdir -p "${1%/*}"
    new="$1.provision.$$"
    printf '%s' "$2" | base64 -d >"$new"
    chmod 0644 "$new"
    mv -f "$new" "$1"
}
put "$script" "$script_data"
put "$service" "$service_data"
put "$timer" "$timer_data"
systemctl daemon-reload
systemctl restart "$unit"
"""
_REMOVE = """
if test "$(systemctl is-active "$unit" 2>/dev/null)" = active; then systemctl stop "$unit"; fi
rm -f "$script" "$service" "$timer"
systemctl daemon-reload
"""


@dataclass(frozen=True, kw_only=True)
class IdleStop(Resource):
    """Script, service and timer that power the VM off when it was not used for a while; with `present` false, none of them.

    `texts` are those of `FILES`. A VM that powers itself off is TERMINATED, as one that was stopped
    (Compute Engine, "Stop a VM"). /etc is lost at a reboot of Container-Optimized OS, so the boot
    script calls this again.
    """

    texts: Mapping[str, str] = field(repr=False)
    present: bool = True

    def probe(self) -> Script:
        """The three files, and whether the timer runs."""
        return script(_PROBE, unit=TIMER, script=SCRIPT, service=SERVICE_FILE, timer=TIMER_FILE)

    def read(self, text: str) -> State | None:
        """`{"script", "service", "timer", "active"}`; None when there is nothing of it."""
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if not found:
            return None
        try:
            texts = {
                key: base64.b64decode(found[key], validate=True).decode("utf-8", "replace")
                for key in FILES
                if key in found
            }
        except binascii.Error as error:
            raise ProbeUnreadable(
                "a file did not come back whole", where=self.name, why=str(error)
            ) from error
        return {**texts, "active": found.get("active") == "yes"}

    def desired(self, facts: Facts) -> State | None:  # noqa: ARG002
        """The files, and the timer running; absent where it is not wanted."""
        return {**self.texts, "active": True} if self.present else None

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Write, reload, start; or stop and remove."""
        if not self.present:
            return script(
                _REMOVE, unit=TIMER, script=SCRIPT, service=SERVICE_FILE, timer=TIMER_FILE
            )
        data = {f"{key}_data": payload(text.encode()) for key, text in self.texts.items()}
        return script(
            _ENSURE, unit=TIMER, script=SCRIPT, service=SERVICE_FILE, timer=TIMER_FILE, **data
        )
