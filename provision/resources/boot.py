"""What brings a host back after a reboot: the same `ensure` snippets, as files. Pure.

`boot.sh` never changes; each recipe owns one fragment under `boot.d`, so that provisioning the host does not undo
what `dev.up` or `mps.enable` added, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from provision.model import Facts, State
from provision.resource import Resource
from provision.resources.file import File
from provision.shell import ARGUMENT_LIMIT_BYTES, RemotePath, Script, Section, quote, script, section_text

STATE_DIR = RemotePath("/var/lib/provision")
BOOT_SCRIPT = STATE_DIR / "boot.sh"
FRAGMENTS = STATE_DIR / "boot.d"

BOOT_TEXT = """\
#!/bin/sh
# Brings this host back after a boot: runs every fragment of boot.d in order, the steps that provision itself runs.
# Safe to run at any time. It is read by sh, so it works from a file system that is mounted noexec.
R=${PROVISION_MOCK_ROOT-}
export R
step() {
    echo "provision: $1"
    timeout -k 10 "$2" sh -c "$3" </dev/null || {
        echo "provision: $1 failed with status $?" >&2
        exit 1
    }
}
for fragment in "$R"/var/lib/provision/boot.d/*.sh; do
    test -e "$fragment" || continue
    . "$fragment"
done
echo "provision: ready"
"""


def BootRunner(name: str = "boot-script", *, needs: tuple[str, ...] = ()) -> File:  # noqa: N802 - reads as a resource
    """`boot.sh` itself."""
    return File(name=name, needs=needs, path=str(BOOT_SCRIPT), content=BOOT_TEXT, mode="0755")


def fragment_text(resources: Sequence[Resource], facts: Facts) -> str:
    """One `step` for each resource that is marked `at_boot`, in order."""
    steps = []
    for resource in resources:
        if not resource.at_boot or not resource.desired(facts) or (body := resource.ensure(facts)) is None:
            continue  # nothing is asked of this host
        text = section_text(Section(resource.name, body, resource.timeout_s, strict=True))
        if len(text.encode("utf-8", "surrogateescape")) > ARGUMENT_LIMIT_BYTES:
            continue  # a payload this large is on the host's disk already and survives a boot
        steps.append(f"step {quote(resource.name)} {resource.timeout_s:g} {quote(text)}\n")
    return "".join(steps)


@dataclass(frozen=True, kw_only=True)
class BootFragment(Resource):
    """`boot.d/NAME`: the `at_boot` steps of one recipe. With no `steps` the fragment should be absent."""

    file: str
    steps: tuple[Resource, ...]

    def _file(self, facts: Facts) -> File:
        return File(name=self.name, path=str(FRAGMENTS / self.file), content=fragment_text(self.steps, facts), mode="0644")

    def probe(self) -> Script:
        """The fragment's text."""
        return self._file(Facts()).probe()

    def read(self, text: str) -> State | None:
        """`{"mode", "content"}`."""
        return self._file(Facts()).read(text)

    def desired(self, facts: Facts) -> State | None:
        """The steps' own `ensure` snippets; absent without steps."""
        return self._file(facts).desired(facts) if self.steps else None

    def ensure(self, facts: Facts) -> Script | None:
        """Write it, or remove it."""
        if not self.steps:
            return script('rm -f "$path"', path=FRAGMENTS / self.file)
        return self._file(facts).ensure(facts)


def fragment(name: str, file: str, resources: Sequence[Resource]) -> BootFragment:
    """The fragment for those of `resources` that are marked `at_boot`."""
    steps = tuple(replace(resource, needs=(), on_change_of=()) for resource in resources if resource.at_boot)
    return BootFragment(name=name, file=file, steps=steps)
