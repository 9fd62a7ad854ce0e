"""The boot script and its fragments: the `ensure` scripts of a recipe, as files. Pure.

`boot.sh` never changes. Each recipe owns one fragment in `boot.d`, so that `vm.provision` does not
undo what `dev.up` or `mps.enable` added, nor the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provision.core.job import Section, section_text, timeout_text
from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import ARGUMENT_LIMIT_BYTES, RemotePath, Script, quote, script
from provision.resources.file import File

STATE_DIR = RemotePath("/var/lib/provision")
BOOT_SCRIPT = STATE_DIR / "boot.sh"
FRAGMENTS = STATE_DIR / "boot.d"
BOOT_TEXT = (Path(__file__).parent / "boot.sh").read_text(encoding="utf-8")
"""The text of the boot script."""


def BootRunner(name: str = "boot-script", *, needs: tuple[str, ...] = ()) -> File:  # noqa: N802 - reads as a resource
    """The boot script as a resource."""
    return File(name=name, needs=needs, path=str(BOOT_SCRIPT), content=BOOT_TEXT, mode="0755")


def fragment_text(resources: Sequence[Resource], facts: Facts, undo: Resource | None = None) -> str:
    """The text of a fragment: one `step` for each resource with `at_boot`, in order.

    `undo` is a further step, run when one of them fails or is interrupted.
    """
    undo_step = "" if undo is None else _step(undo, facts)
    lines = [_step(resource, facts) for resource in resources if resource.at_boot]
    if undo_step:
        on_exit = quote("test $? = 0 || " + undo_step)
        lines = [f"trap {on_exit} EXIT\n", "trap 'exit 143' HUP INT TERM\n", *lines]
    return "".join(lines)


def _step(resource: Resource, facts: Facts) -> str:
    """A line that runs the resource's `ensure`; empty where it does nothing on this host."""
    if resource.desired(facts) == {} or (body := resource.ensure(facts)) is None:
        return ""
    text = section_text(Section(resource.name, body, resource.timeout_s, strict=True))
    if len(text.encode("utf-8", "surrogateescape")) > ARGUMENT_LIMIT_BYTES:
        return ""  # a payload this large is on the host's disk already and survives a boot
    return f"step {quote(resource.name)} {timeout_text(resource.timeout_s)} {quote(text)}\n"


@dataclass(frozen=True, kw_only=True)
class BootFragment(Resource):
    """File `boot.d/NAME` with the `at_boot` steps of one recipe; absent without `steps`.

    Only root reads the file, and no diff shows it: a step may hold a secret, or the user's
    `worker.env`.
    """

    file: str
    steps: tuple[Resource, ...]
    undo: Resource | None = None
    """Runs at a boot after a step failed, so that no half-finished state stays."""

    def text(self, facts: Facts) -> str:
        """The content of the file on a host with these facts."""
        return fragment_text(self.steps, facts, self.undo)

    def _file(self, facts: Facts) -> File:
        data = self.text(facts).encode("utf-8", "surrogateescape")  # as bytes: compared by digest
        return File(name=self.name, path=str(FRAGMENTS / self.file), content=data, mode="0600")

    def probe(self) -> Script:
        """Print the permissions and the digest of the file."""
        return self._file(Facts()).probe()

    def read(self, text: str) -> State | None:
        """`{"mode", "sha256"}`; None without the file."""
        return self._file(Facts()).read(text)

    def desired(self, facts: Facts) -> State | None:
        """The digest of the steps' `ensure` scripts; None without steps."""
        return self._file(facts).desired(facts) if self.steps else None

    def ensure(self, facts: Facts) -> Script | None:
        """Write the file, or remove it."""
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
    """The fragment of those `resources` that have `at_boot`; `undo` runs after a failed step."""
    steps = tuple(
        replace(resource, needs=(), on_change_of=()) for resource in resources if resource.at_boot
    )
    return BootFragment(name=name, needs=needs, file=file, steps=steps, undo=undo)
