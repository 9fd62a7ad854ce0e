"""Checks of the driver, the GPU, its compute mode and the kernel's log. Pure."""

from __future__ import annotations

from provision.core.parsing import parse_version
from provision.mps.doctor.evidence import Evidence
from provision.mps.doctor.finding import Finding, fail, ok, unknown, warn
from provision.mps.plan.gpu_limits import VOLTA, client_limit
from provision.report.text import count_phrase

OLDEST_DRIVER = 450
"""The oldest driver branch whose MPS users report on."""
DRIVER_LIBRARIES = "/usr/local/nvidia/lib64"
"""Where the driver's volume is mounted in a container."""


def driver(evidence: Evidence) -> Finding:
    """Kernel module and libraries are of one version; a difference breaks every CUDA call."""
    module, printed = evidence.value("module"), evidence.value("smi_said")
    library = evidence.value("library").rpartition("libcuda.so.")[2]
    if module and library.count(".") > 0 and library != module:
        return _versions_differ(evidence, f"kernel module {module}, libcuda {library}")
    repair = "invoke vm.provision, then invoke dev.up"
    if "version mismatch" in printed.lower():
        return fail(
            "kernel module and libraries differ",
            printed,
            f"{repair}   (a loaded module stays until a reboot)",
        )
    if evidence.number("smi_status") != 0 or not evidence.number("smi_gpus"):
        why = printed or "it printed nothing"
        return fail("nvidia-smi lists no GPU in the container", why, repair)
    return ok(f"driver {module}" if module else "the driver answers")


def _versions_differ(evidence: Evidence, versions: str) -> Finding:
    """By the folder of the library: the image's own one, or the driver's."""
    folder = evidence.value("library_in")
    if folder != DRIVER_LIBRARIES:
        return fail(
            "a libcuda of the image's own is ahead of the driver's",
            f"{versions} in {folder}",
            f"put {DRIVER_LIBRARIES} first in LD_LIBRARY_PATH: invoke dev.up does, unless"
            " worker.env or the program itself sets it",
        )
    return fail(
        "kernel module and libraries differ",
        versions,
        "invoke vm.provision, then invoke dev.up   (a loaded module stays until a reboot)",
    )


def gpu(evidence: Evidence) -> Finding:
    """The GPU is Volta or newer, MIG is off, and the driver is not too old."""
    gpus = evidence.status.gpus
    if not gpus:
        return unknown("nvidia-smi describes no GPU", fix="invoke vm.provision")
    first = gpus[0]
    if first.compute_capability is None:
        return unknown(f"the compute capability of {first.name} is not known")
    if first.compute_capability < VOLTA:
        capability = ".".join(map(str, first.compute_capability))
        return fail(
            f"{first.name} is older than Volta",
            f"compute capability {capability}: 16 clients, no isolation, no start in containers",
            "use a GPU of compute capability 7.0 or newer: gpu: nvidia-l4",
        )
    if first.mig:
        return fail(
            "MIG is on",
            "this toolkit shares whole GPUs",
            "sudo nvidia-smi -mig 0   (on the host), then reboot it",
        )
    branch = parse_version(first.driver)
    if branch is not None and branch[0] < OLDEST_DRIVER:
        return warn(
            f"driver {first.driver} is old",
            f"nothing older than {OLDEST_DRIVER} was tried",
            "set driver: default, then invoke vm.provision",
        )
    limit = client_limit(first.compute_capability, evidence.status.cuda)
    return ok(f"{first.name}, {limit} clients at most")


def compute_mode(evidence: Evidence) -> Finding:
    """Processes may use the GPU.

    EXCLUSIVE_PROCESS without a daemon admits one process and fails the next with error 46;
    PROHIBITED fails all.
    """
    gpus = evidence.status.gpus
    modes = {gpu.compute_mode.lower().replace("_", "").replace(" ", "") for gpu in gpus}
    if not modes:
        return unknown("nvidia-smi does not report the compute mode")
    if "prohibited" in modes:
        return fail(
            "the compute mode is PROHIBITED",
            "no process may use the GPU",
            "sudo nvidia-smi -c 0   (on the host)",
        )
    is_exclusive = any(mode.startswith(("exclusive", "e.process")) for mode in modes)
    if is_exclusive and not evidence.status.daemon:
        return fail(
            "the compute mode is EXCLUSIVE_PROCESS and no daemon answers",
            "one process has the GPU, every other one fails with error 46 (busy or unavailable)",
            "invoke mps.enable, or sudo nvidia-smi -c 0   (on the host)",
        )
    return ok(", ".join(sorted({gpu.compute_mode for gpu in gpus})))


def kernel_log(evidence: Evidence) -> Finding:
    """The driver reported no fault."""
    if evidence.xids:
        last = evidence.xids[-1]
        return warn(
            f"{count_phrase(len(evidence.xids), 'Xid error')}, the last one {last.number}",
            f"{last.device}: {last.text}"[:200],
            "restart the VM if CUDA still hangs with no daemon: invoke vm.reset",
        )
    if evidence.value("kernel") != "yes":
        return unknown(
            "the kernel's log could not be read",
            "dmesg is missing, or this user may not read it",
            "sudo dmesg   (on the host)",
        )
    return ok("no fault of the GPU")
