"""What brings a host back after a reboot: the same `ensure` snippets, as files. Pure.

`boot.sh` never changes; each recipe owns one fragment under `boot.d`, so that provisioning the host
does not undo what `dev.up` or `mps.enable` added, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from provision.core.job import Section, section_text, timeout_text
from provision.core.model import Facts, Scalar, State
from provision.core.resource import Resource
from provision.core.shell import ARGUMENT_LIMIT_BYTES, RemotePath, Script, fields, quote, script
from provision.resources.file import File

STATE_DIR = RemotePath("/var/lib/provision")
BOOT_SCRIPT = STATE_DIR / "boot.sh"
FRAGMENTS = STATE_DIR / "boot.d"

BOOT_TEXT = """\
#!/bin/sh
# Brings this host back after a boot: runs every fragment of boot.d in order, the steps that provision itself runs.
# Safe to run at any time. It is read by sh, so it works from a file system that is mounted noexec.
# A fragment ends at its first step that fails; the next fragments are tried all the same.
R=${PROVISION_MOCK_ROOT-}
export R
status=0
step() {
    echo "provision: $1"
    timeout -k 10 "$2" sh -c "$3" </dev/null || {
        echo "provision: $1 failed with status $?" >&2
        exit 1
    }
}
for fragment in "$R"/var/lib/provision/boot.d/*.sh; do
    test -e "$fragment" || continue
    (. "$fragment") || status=$?
done
test "$status" = 0 || exit "$status"
echo "provision: ready"
"""


def BootRunner(name: str = "boot-script", *, needs: tuple[str, ...] = ()) -> File:  # noqa: N802 - reads as a resource
    """`boot.sh` itself."""
    return File(name=name, needs=needs, path=str(BOOT_SCRIPT), content=BOOT_TEXT, mode="0755")


def fragment_text(resources: Sequence[Resource], facts: Facts, undo: Resource | None = None) -> str:
    """One `step` for each resource that is marked `at_boot`, in order; `undo` is one more, for when one of them fails or is cut."""
    back = "" if undo is None else _step(undo, facts)
    traps = (
        [f"trap {quote('test $? = 0 || ' + back)} EXIT\n", "trap 'exit 143' HUP INT TERM\n"]
        if back
        else []
    )
    return "".join(
        [*traps, *(_step(resource, facts) for resource in resources if resource.at_boot)]
    )


def _step(resource: Resource, facts: Facts) -> str:
    """A line that does what the resource asks of this host; empty where it asks nothing."""
    if resource.desired(facts) == {} or (body := resource.ensure(facts)) is None:
        return ""
    text = section_text(Section(resource.name, body, resource.timeout_s, strict=True))
    if len(text.encode("utf-8", "surrogateescape")) > ARGUMENT_LIMIT_BYTES:
        return ""  # a payload this large is on the host's disk already and survives a boot
    return f"step {quote(resource.name)} {timeout_text(resource.timeout_s)} {quote(text)}\n"


@dataclass(frozen=True, kw_only=True)
class BootFragment(Resource):
    """`boot.d/NAME`: the `at_boot` steps of one recipe. With no `steps` the fragment should be absent.

    Only root reads it, and no diff shows it: a step may hold a secret, or what the user put into
    `worker.env`.
    """

    file: str
    steps: tuple[Resource, ...]
    undo: Resource | None = None
    """What a boot does once a step failed, so that it leaves nothing half done that is worse than
    nothing."""

    def text(self, facts: Facts) -> str:
        """What stands in it on a host of these facts."""
        return fragment_text(self.steps, facts, self.undo)

    def _file(self, facts: Facts) -> File:
        data = self.text(facts).encode("utf-8", "surrogateescape")  # as bytes: compared by digest
        return File(name=self.name, path=str(FRAGMENTS / self.file), content=data, mode="0600")

    def probe(self) -> Script:
        """The fragment's permissions and digest."""
        return self._file(Facts()).probe()

    def read(self, text: str) -> State | None:
        """`{"mode", "sha256"}`."""
        return self._file(Facts()).read(text)

    def desired(self, facts: Facts) -> State | None:
        """The steps' own `ensure` snippets; absent without steps."""
        return self._file(facts).desired(facts) if self.steps else None

    def ensure(self, facts: Facts) -> Script | None:
        """Write it, or remove it."""
        if not self.steps:
            return script('rm -f "$path"', path=FRAGMENTS / self.file)
        return self._file(facts).ensure(facts)


def fragment(
    name: str,
    file: str,
    resources: Sequence[Resource],
    *,
    needs: tuple[str, ...] = (),
    undo: Resource | None = None,
) -> BootFragment:
    """The fragment for those of `resources` that are marked `at_boot`; `undo` says what a step that fails is to be followed by."""
    steps = tuple(
        replace(resource, needs=(), on_change_of=()) for resource in resources if resource.at_boot
    )
    return BootFragment(name=name, needs=needs, file=file, steps=steps, undo=undo)


# The metadata server says what cloud-init will be given at the next boot; what it was given at this
# one may be older.
_ENDED = """
echo "state=$(systemctl is-active "$unit" 2>/dev/null)"
echo "job=$(systemctl show --property Job --value "$unit" 2>/dev/null)"
if test -n "$asks" && grep -q '^ID="*cos"*$' "$R/etc/os-release" 2>/dev/null; then
    ask() {
        curl -sf -m 3 -H 'Metadata-Flavor: Google' "http://metadata.google.internal/computeMetadata/v1/instance/$1" 2>/dev/null
    }
    if ask attributes/user-data | grep -q "$unit"; then echo "called=yes"; else echo "called=no"; fi
    echo "instance=$(ask name)"
    echo "zone=$(ask zone)"
fi
"""


@dataclass(frozen=True, kw_only=True)
class BootEnded(Resource):
    """The boot unit is not under way: two at the same steps would be in each other's way.

    How it ended does not matter, since what it left undone is seen and done by the recipe.
    """

    unit: str
    timeout_s: float = 1800.0
    asks_caller: bool = False
    """Look whether anything starts the unit at a boot. Container-Optimized OS forgets /etc: only
    user-data does, which a machine that was not made here may lack."""

    def probe(self) -> Script:
        """What systemd says of it; a oneshot unit that runs is `activating`, one that waits to be started has a job."""
        return script(_ENDED, unit=self.unit, asks="yes" if self.asks_caller else "")

    def read(self, text: str) -> State | None:
        """`{"under_way"}`, and where it was asked on Container-Optimized OS `{"called", "instance", "zone"}`."""
        found = fields(text)
        state: dict[str, Scalar] = {
            "under_way": found.get("state", "").strip() == "activating"
            or found.get("job", "").strip().strip("0").isdigit()
        }
        if "called" in found:
            zone = found.get("zone", "").strip().rpartition("/")[2]
            state |= {
                "called": found["called"].strip() == "yes",
                "instance": found.get("instance", "").strip(),
                "zone": zone,
            }
        return state

    def remark(self, actual: State | None) -> str:
        """That a reboot would undo everything, and the command that puts the user-data there."""
        if actual is None or actual.get("called", True):
            return ""
        name, zone = actual.get("instance") or "INSTANCE", actual.get("zone") or "ZONE"
        put = f"gcloud compute instances add-metadata {name} --zone {zone} --metadata-from-file user-data=user-data"
        return f"nothing brings this host back after a reboot: invoke vm.user-data > user-data && {put}"

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"under_way": False}`."""
        return {"under_way": False}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Wait, and say now and then what it is at."""
        return script(
            """
waited=0 pause=0.2
under_way() {
    test "$(systemctl is-active "$unit" 2>/dev/null)" != activating || return 0
    case $(systemctl show --property Job --value "$unit" 2>/dev/null) in *[1-9]*) return 0 ;; esac
    return 1
}
while under_way; do
    if test "$((waited % 15))" -eq 0; then
        echo "waiting for the boot of the host: $(journalctl --unit "$unit" --lines 1 --output cat 2>/dev/null || true)"
    fi
    waited=$((waited + 1))
    test "$waited" -lt 15 || pause=1
    sleep "$pause"
done
""",
            unit=self.unit,
        )
