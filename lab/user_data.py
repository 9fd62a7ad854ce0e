"""User-data as a script, which the lab runs at every boot."""

from __future__ import annotations

from provision.core.shell import command, payload, script
from provision.testing.host import cloud_init

_PUT = """
mkdir -p "${path%/*}"
printf '%s' "$data" | base64 -d >"$path"
chmod "$mode" "$path"
"""


class _Recorder:
    """A `BootingHost` that records each step as a script."""

    root_path = ""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def put(self, path: str, text: str, mode: str = "644") -> None:
        self.steps.append(script(_PUT, path=path, data=payload(text.encode()), mode=mode).render())

    def run_as_root(
        self, argv: list[str], *, stdin: bytes = b"", timeout_s: float = 900
    ) -> tuple[int, str]:
        del stdin, timeout_s
        self.steps.append(command(*argv).render())
        return 0, ""

    def print_console(self, text: str) -> None:
        if text.strip():
            self.steps.append(command("printf", "%s\n", text.rstrip()).render())


def as_script(text: str) -> str:
    """The script for user-data; later steps run after a failed one, as with cloud-init."""
    recorder = _Recorder()
    if text:
        cloud_init.apply(text, recorder)
    return "#!/bin/sh\n" + "".join(
        f'({step}) || echo "user-data: a step failed with status $?"\n' for step in recorder.steps
    )
