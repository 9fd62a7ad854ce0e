"""systemd units. Pure."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

from provision.core.errors import ProbeUnreadable
from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import RemotePath, Script, payload, script

_DIR = RemotePath("/etc/systemd/system")
_PROBE = """
test -f "$path" || exit 0
echo "enabled=$(systemctl is-enabled "$unit" 2>/dev/null)"
systemctl show --property=ActiveState,NeedDaemonReload "$unit" 2>/dev/null
echo "content="
base64 <"$path"
"""
_ENSURE = """
mkdir -p "${path%/*}"
new="$path.provision.$$"
trap 'rm -f "$new"' EXIT
trap 'exit 143' TERM HUP INT
for old in "$path".provision.[0-9]*; do
    test ! -e "$old" || kill -0 "${old##*.}" 2>/dev/null || rm -f "$old"
done
printf '%s' "$data" | base64 -d >"$new"
chmod 0644 "$new"
reload=no
if ! cmp -s "$new" "$path"; then
    mv -f "$new" "$path"
    reload=yes
fi
case $reload/$(systemctl show --property=NeedDaemonReload "$unit" 2>/dev/null) in *yes*) systemctl daemon-reload ;; esac
if test -n "$enabled"; then systemctl enable "$unit"; fi
if test -n "$active"; then systemctl restart "$unit"; fi
"""


@dataclass(frozen=True, kw_only=True)
class Unit(Resource):
    """A unit file under /etc/systemd/system, known to systemd as it is, enabled, and running where `active`.

    On Container-Optimized OS /etc is lost at a reboot and enabling with it (Google: "Disks and file
    system overview"): there cloud-init writes the unit again at every boot.
    """

    unit: str
    content: str = field(repr=False)
    enabled: bool = True
    active: bool = False

    @property
    def _path(self) -> RemotePath:
        return _DIR / self.unit

    def probe(self) -> Script:
        """The file, and whether systemd calls it enabled and active, and has read what it says now."""
        return script(_PROBE, path=self._path, unit=self.unit)

    def read(self, text: str) -> State | None:
        """`{"content", "loaded", "enabled", "active"}`; not loaded is what a run leaves that was cut before `daemon-reload`."""
        if not text.strip():
            return None
        head, _, encoded = text.partition("content=\n")
        found = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
        try:
            content = base64.b64decode("".join(encoded.split()), validate=True).decode(
                "utf-8", "replace"
            )
        except binascii.Error as error:
            raise ProbeUnreadable(
                "the unit file did not come back whole", where=self.unit, why=str(error)
            ) from error
        enabled = found.get("enabled", "").startswith(("enabled", "static", "alias"))
        loaded, active = (
            found.get("NeedDaemonReload") != "yes",
            found.get("ActiveState") == "active",
        )
        return {"content": content, "loaded": loaded, "enabled": enabled, "active": active}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """The content, loaded; enabled and active where asked for."""
        wanted: dict[str, str | bool] = {"content": self.content, "loaded": True}
        if self.enabled:
            wanted["enabled"] = True
        if self.active:
            wanted["active"] = True
        return wanted

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Write, reload, enable, start."""
        flags = {
            name: "yes" if value else ""
            for name, value in (("enabled", self.enabled), ("active", self.active))
        }
        return script(
            _ENSURE, path=self._path, unit=self.unit, data=payload(self.content.encode()), **flags
        )
