"""The compute mode of the GPU: EXCLUSIVE_PROCESS where it is asked for, and as it was found afterwards. Pure.

Sources: NVIDIA MPS guide ("when to use MPS"): EXCLUSIVE_PROCESS is recommended and not required, it
needs root, and with it a process that misses the daemon fails instead of running without MPS. It
stays on the GPU when the daemon goes, and then every second process fails with error 46 (facts:
nebuly-ai/nos#27), so what was found is written down and restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import RemotePath, Script, fields, script
from provision.resources.boot import STATE_DIR
from provision.resources.driver import DRIVER_DIR

RECORD = STATE_DIR / "mps-compute-mode"
"""GPU and mode as they were found, one GPU a line, of those that we set. It outlives a reboot,
which the GPU's mode does not."""

_PROBE = """
test ! -r "$record" || { echo "recorded=yes" && sed -n 's/^\\(GPU-[^,]*\\), */found.\\1=/p' "$record"; }
test -x "$dir/bin/nvidia-smi" || exit 0
set --
test -z "$device" || set -- -i "$device"
LD_LIBRARY_PATH=$dir/lib64 timeout 20 "$dir/bin/nvidia-smi" "$@" --query-gpu=uuid,compute_mode --format=csv,noheader 2>/dev/null |
    sed -n 's/^\\(GPU-[^,]*\\), */mode.\\1=/p'
"""
_ENSURE = """
smi() { LD_LIBRARY_PATH=$dir/lib64 timeout 20 "$dir/bin/nvidia-smi" "$@"; }
set --
test -z "$device" || set -- -i "$device"
modes() { smi "$@" --query-gpu=uuid,compute_mode --format=csv,noheader; }
ours=
test "$wanted" != exclusive || ours=$(modes "$@")
if test -r "$record"; then
    while IFS=', ' read -r uuid mode; do
        case $ours in *"$uuid"*) continue ;; esac
        case $mode in Default) mode=DEFAULT ;; Prohibited) mode=PROHIBITED ;; *) mode=EXCLUSIVE_PROCESS ;; esac
        smi -i "$uuid" -c "$mode"
    done <"$record"
    test "$wanted" = exclusive || rm -f "$record"
fi
test -n "$wanted" || exit 0
found=$(modes "$@")
case $found in *Prohibited*) echo "the compute mode is Prohibited: $found"; exit 1 ;; esac
test "$wanted" = exclusive || exit 0
mkdir -p "${record%/*}"
printf '%s\\n' "$found" | while IFS= read -r line; do
    grep -F "${line%%,*}" "$record" 2>/dev/null || printf '%s\\n' "$line"
done >"$record.new"
mv -f "$record.new" "$record"
smi "$@" -c EXCLUSIVE_PROCESS
"""


@dataclass(frozen=True, kw_only=True)
class ComputeMode(Resource):
    """The mode that is `wanted`.

    `exclusive`: EXCLUSIVE_PROCESS, with the mode that was found written down; a GPU that is no
    longer chosen has its own again. `default`: as found, and usable (PROHIBITED is reported, not
    mended: somebody chose it). Empty: as found, whatever that is.
    """

    wanted: Literal["exclusive", "default", ""] = ""
    gpu: str = ""
    directory: str = DRIVER_DIR.path

    def _wanted(self, facts: Facts) -> str:
        return self.wanted if facts.gpus or facts.driver_loaded else ""

    def probe(self) -> Script:
        """The mode of each GPU, and whether one was written down."""
        return script(_PROBE, record=RECORD, dir=RemotePath(self.directory), device=self.gpu)

    def read(self, text: str) -> State | None:
        """`{"mode", "changed_by_us", "others", "usable"}`; `others` are GPUs whose mode we changed, beside those that are chosen."""
        found = fields(text)
        chosen = {key[5:] for key in found if key.startswith("mode.")}
        others = (
            ", ".join(
                sorted(
                    key[6:] for key in found if key.startswith("found.") and key[6:] not in chosen
                )
            )
            if chosen
            else ""
        )
        modes = sorted({value.strip() for key, value in found.items() if key.startswith("mode.")})
        usable = "Prohibited" not in modes
        return {
            "mode": ", ".join(modes),
            "changed_by_us": "recorded" in found,
            "others": others,
            "usable": usable,
        }

    def desired(self, facts: Facts) -> State:
        """Exclusive and written down; or not changed by us, and usable."""
        match self._wanted(facts):
            case "exclusive":
                return {"mode": "Exclusive_Process", "changed_by_us": True, "others": ""}
            case "default":
                return {"changed_by_us": False, "usable": True}
            case _:
                return {"changed_by_us": False}

    def ensure(self, facts: Facts) -> Script | None:
        """Write down what is found and set it; or restore what was written down."""
        return script(
            _ENSURE,
            record=RECORD,
            dir=RemotePath(self.directory),
            device=self.gpu,
            wanted=self._wanted(facts),
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """PROHIBITED, or no right to set a mode."""
        if "Prohibited" in output:
            return Diagnosis(
                "the compute mode of the GPU is PROHIBITED: no process may use it",
                "sudo nvidia-smi -c DEFAULT   (on the host)",
            )
        if "Insufficient Permissions" in output:
            return Diagnosis(
                "the compute mode can be set by root alone",
                "become: sudo   for this host in the settings",
            )
        return None
