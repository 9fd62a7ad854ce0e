"""The bind mount that makes a folder of a noexec file system executable. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import RemotePath, Script, script

# `mount --bind` stacks on every call, so layers are counted first: findmnt prints one line for
# each, the topmost last.
_PROBE = """
findmnt -rno OPTIONS -M "$path" | {
    layers=0
    top=
    while read -r options; do
        layers=$((layers + 1))
        top=$options
    done
    echo "layers=$layers"
    case ,$top, in
        ,, | *,noexec,*) ;;
        *) echo exec=yes ;;
    esac
}
"""
_ENSURE = """
layers() { findmnt -rno OPTIONS -M "$path" | grep -c . || true; }
mkdir -p "$path"
while test "$(layers)" -gt 1; do
    umount "$path"
done
test "$(layers)" -eq 1 || mount --bind "$path" "$path"
case ,$(findmnt -rno OPTIONS -M "$path" | tail -n 1), in
    *,noexec,*) mount -o remount,exec "$path" ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class ExecBindMount(Resource):
    """`path` bind-mounted onto itself exactly once, and executable.

    Container-Optimized OS mounts /var noexec; the documented remedy is `mount --bind DIR DIR` and
    `mount -o remount,exec DIR` (Google: "Run GPU workloads on Container-Optimized OS"). Elsewhere
    nothing is mounted.
    """

    path: str

    def probe(self) -> Script:
        """How many mounts lie on the path, and whether the topmost is executable."""
        return script(_PROBE, path=RemotePath(self.path))

    def read(self, text: str) -> State | None:
        """`{"layers", "exec"}`."""
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return {"layers": int(found["layers"]), "exec": found.get("exec") == "yes"}

    def desired(self, facts: Facts) -> State:
        """One executable layer on Container-Optimized OS; anything goes elsewhere."""
        return {"layers": 1, "exec": True} if facts.is_cos else {}

    def ensure(self, facts: Facts) -> Script | None:
        """Take off what is stacked, bind where nothing is, remount where it is noexec; elsewhere nothing, at a boot neither."""
        return script(_ENSURE, path=RemotePath(self.path)) if facts.is_cos else None
