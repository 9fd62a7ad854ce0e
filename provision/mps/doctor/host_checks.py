"""What the checks of `mps.doctor` make of the place: container, driver, GPU, directories, limits. Pure; in the order of `doctor.CHECKS`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.core.parsing import parse_int, parse_version
from provision.mps.doctor.evidence import Found
from provision.mps.doctor.verdict import Judged, fail, ok, unknown, warn
from provision.mps.plan.advice import DEFAULT_SHM_MIB
from provision.mps.plan.gpu_limits import VOLTA, client_limit
from provision.report.text import counted

OLDEST_DRIVER = 450
"""The oldest branch whose MPS was reported of; older ones were not tried."""
LONGEST_PIPE = 88
"""Bytes of a pipe directory: a Unix socket's path holds 107, and MPS appends
`/control_privileged`."""
LEAST_FILES = 16_384
LEAST_PIDS = 1024
LEAST_FREE_SHM_MIB = 16
DRIVER_LIBRARIES = "/usr/local/nvidia/lib64"
"""Where the driver's volume is mounted in a container."""
REMOTE = ("nfs", "cifs", "smb2", "fuseblk", "9p", "v9fs", "lustre", "gpfs")


def container(found: Found) -> Judged:
    """Running, those of the topology, with a shell, with glibc: both MPS binaries are linked against it."""
    apart, joined = (
        found.value("daemon_container"),
        found.value("pid_mode").startswith("container:"),
    )
    if found.value("running") == "true" and joined != bool(apart):
        why = f"mps.topology is {'containers' if apart else 'container'}, and they were made for the other one"
        return fail(
            "the containers are not those of the settings",
            why,
            "invoke mps.enable   (makes them anew)",
        )
    if apart and found.value("running") and found.value("daemon_running") != "true":
        why = (
            _ended(found.value("daemon_running"))
            + ": the MPS daemon lives in it, and so do the workers' processes"
        )
        return fail(f"the container {apart} is not running", why, "invoke dev.up")
    if found.value("running") != "true":
        return fail(
            "the worker container is not running", _ended(found.value("running")), "invoke dev.up"
        )
    if missing := found.daemon.missing:
        total = found.daemon.workers or 0
        left = total - len(missing)
        why = f"not running: {', '.join(missing)}"
        return fail(
            f"{left} of {counted(total, 'worker container')} {'runs' if left == 1 else 'run'}",
            why,
            "invoke dev.up",
        )
    if found.value("inside") != "yes":
        return unknown(
            "nothing can be run in the container",
            "its image may have no shell",
            "invoke dev.exec -- sh -c true",
        )
    if not found.value("glibc"):
        why = "nvidia-cuda-mps-control and its server need glibc's loader; musl images such as Alpine do not have it"
        return fail(
            "the image has no glibc",
            why,
            "use an image based on Debian or Ubuntu: MPS binaries do not run on Alpine",
        )
    return ok(f"running, {found.value('glibc')}")


def _ended(running: str) -> str:
    """What Docker says of a container that does not run."""
    return "it was made, and has ended" if running else "there is no such container"


def devices(found: Found) -> Judged:
    """The three device nodes, and one GPU: Dataflow's MPS is for workers with one."""
    missing = [
        name
        for name in ("nvidia0", "nvidiactl", "nvidia-uvm")
        if found.value(f"node.{name}") != "yes"
    ]
    if missing:
        fix = "invoke vm.provision, then invoke dev.up   (they are given to the container when it is made)"
        return fail(
            f"the container lacks /dev/{', /dev/'.join(missing)}",
            "no --device for them, and not --privileged",
            fix,
        )
    gpus, wanted = found.number("smi_gpus") or 0, found.wanted_gpu
    listed = [word.partition(",") for word in found.value("smi_uuids").split()]
    if wanted and listed and not any(wanted in {index, uuid} for index, _, uuid in listed):
        why = f"mps.gpu names it, and nvidia-smi lists {', '.join(index for index, _, _ in listed)}"
        return fail(f"there is no GPU {wanted}", why, "invoke dev.exec -- nvidia-smi -L")
    if gpus > 1 and wanted:
        return ok(f"device nodes are there, of {gpus} GPUs the settings choose {wanted}")
    if gpus > 1:
        fix = "set provision.mps.gpu to the index or UUID of one"
        return warn(
            f"the container sees {gpus} GPUs",
            "MPS on Dataflow is for workers with a single GPU",
            fix,
        )
    return ok("device nodes are there" + (", one GPU" if gpus == 1 else ""))


def executable(found: Found) -> Judged:
    """The driver's volume lets its programs run: Container-Optimized OS mounts it noexec."""
    said = f"{found.value('smi_said')} {found.value('control_said')}"
    if "ermission denied" in said or (
        "noexec" in found.value("mount").split(",") and not found.value("control_said")
    ):
        fix = "invoke vm.provision, then invoke dev.up   (mount --bind, then mount -o remount,exec on the driver's folder)"
        return fail(
            "the driver's programs may not be executed", found.value("mount") or said.strip(), fix
        )
    return ok("the driver's programs run")


def driver(found: Found) -> Judged:
    """Kernel module and libraries of one version; a difference breaks every CUDA call."""
    module, said = found.value("module"), found.value("smi_said")
    library = found.value("library").rpartition("libcuda.so.")[2]
    differ = bool(module) and library.count(".") > 0 and library != module
    if differ or "version mismatch" in said.lower():
        why = (
            f"kernel module {module or 'of another version'}, libcuda {library}" if differ else said
        )
        folder = found.value("library_in")
        if differ and folder != DRIVER_LIBRARIES:
            fix = f"put {DRIVER_LIBRARIES} first in LD_LIBRARY_PATH: invoke dev.up does, unless worker.env or the program itself sets it"
            return fail(
                "a libcuda of the image's own is ahead of the driver's", f"{why} in {folder}", fix
            )
        return fail(
            "kernel module and libraries differ",
            why,
            "invoke vm.provision, then invoke dev.up   (a loaded module stays until a reboot)",
        )
    if found.number("smi_status") != 0 or not found.number("smi_gpus"):
        return fail(
            "nvidia-smi lists no GPU in the container",
            said or "it printed nothing",
            "invoke vm.provision, then invoke dev.up",
        )
    return ok(f"driver {module}" if module else "the driver answers")


def binaries(found: Found) -> Judged:
    """Both programs on PATH, since the daemon starts the server by name, and libcuda for the linker."""
    missing = [
        name
        for name, key in (
            ("nvidia-cuda-mps-control", "control"),
            ("nvidia-cuda-mps-server", "server"),
        )
        if not found.value(key)
    ]
    if missing:
        fix = "invoke dev.up   (puts /usr/local/nvidia/bin on PATH)"
        return fail(
            f"{' and '.join(missing)} not on PATH", "the daemon starts its server by name", fix
        )
    if not found.value("library"):
        fix = "invoke dev.up   (puts /usr/local/nvidia/lib64 into LD_LIBRARY_PATH)"
        return fail(
            "libcuda.so.1 is not found",
            "the server loads it, and dies without a word in server.log when it is not there",
            fix,
        )
    return ok("control tool, server and libcuda are found")


def gpu(found: Found) -> Judged:
    """Volta or newer, no MIG, a driver whose MPS is known."""
    listed = found.daemon.gpus
    if not listed:
        return unknown("nvidia-smi tells nothing of the GPU", fix="invoke vm.provision")
    first = listed[0]
    limit = client_limit(first.compute_capability, found.daemon.cuda)
    if first.compute_capability is None:
        return unknown(f"the compute capability of {first.name} is not told")
    if first.compute_capability < VOLTA:
        capability = ".".join(map(str, first.compute_capability))
        why = f"compute capability {capability}: 16 clients, no isolation, no start in containers"
        return fail(
            f"{first.name} is older than Volta",
            why,
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
    return ok(f"{first.name}, {limit} clients at most")


def compute_mode(found: Found) -> Judged:
    """EXCLUSIVE_PROCESS without a daemon lets one process in and fails the next with 46; PROHIBITED fails all."""
    modes = {
        each.compute_mode.lower().replace("_", "").replace(" ", "") for each in found.daemon.gpus
    }
    if not modes:
        return unknown("nvidia-smi does not tell the compute mode")
    if "prohibited" in modes:
        return fail(
            "the compute mode is PROHIBITED",
            "no process may use the GPU",
            "sudo nvidia-smi -c 0   (on the host)",
        )
    if (
        any(mode.startswith(("exclusive", "e.process")) for mode in modes)
        and not found.daemon.answers
    ):
        why = "one process has the GPU, every other one fails with error 46 (busy or unavailable)"
        return fail(
            "the compute mode is EXCLUSIVE_PROCESS and no daemon answers",
            why,
            "invoke mps.enable, or sudo nvidia-smi -c 0   (on the host)",
        )
    return ok(", ".join(sorted({each.compute_mode for each in found.daemon.gpus})))


def pipe_directory(found: Found) -> Judged:
    """Named, absolute, short enough for a socket, on a local file system, passable by every user."""
    path = found.value("pipe")
    if not path:
        why = "the default, /tmp/nvidia-mps, is looked at by every CUDA program, those of others included"
        return fail("CUDA_MPS_PIPE_DIRECTORY is not set in the container", why, "invoke dev.up")
    if not path.startswith("/") or len(path.encode()) > LONGEST_PIPE:
        why = f"a socket's path holds 107 bytes; this directory has {len(path.encode())}, {LONGEST_PIPE} are possible"
        return fail(
            f"{path} cannot hold the daemon's sockets",
            why,
            "set provision.mps.pipe_dir: /run/mps/pipe, then invoke dev.up",
        )
    if found.value("pipe_type").lower().startswith(REMOTE):
        why = f"it lies on {found.value('pipe_type')}; sockets need a local file system"
        return fail(
            f"{path} is not local",
            why,
            "set provision.mps.pipe_dir: /run/mps/pipe, then invoke dev.up",
        )
    closed = [
        folder for folder, mode in found.modes.items() if re.fullmatch(r"[0-7]{2,3}[0246]", mode)
    ]
    if closed:
        why = "the server is started as the worker's user and has to pass every parent"
        return fail(
            f"other users may not pass {', '.join(closed)}",
            why,
            f"chmod 0755 {' '.join(closed)}   (in the container)",
        )
    return ok(path if found.modes else f"{path}, made when MPS is enabled")


def log_directory(found: Found) -> Judged:
    """There and writable: otherwise nothing is written down of what goes wrong."""
    path = found.value("log")
    if not path:
        return warn(
            "CUDA_MPS_LOG_DIRECTORY is not set in the container",
            "the daemon writes to /var/log/nvidia-mps then",
            "invoke dev.up",
        )
    if not found.value("log_dir"):
        if found.daemon.answers:
            return warn(
                f"there is no {path}",
                "the daemon runs without logs",
                "invoke mps.disable, then invoke mps.enable",
            )
        return ok(f"{path}, made when MPS is enabled")
    if not found.value("log_writable"):
        return warn(
            f"{path} cannot be written",
            "the daemon runs without logs",
            "invoke mps.disable, then invoke mps.enable",
        )
    if found.daemon.answers and not found.value("control_log"):
        return warn(
            f"there is no {path}/control.log",
            "a daemon in the foreground (-f) logs to its terminal",
            "invoke mps.disable, then invoke mps.enable",
        )
    return ok(path)


def limits(found: Found) -> Judged:
    """Shared memory and open files: what "failed to create/open SHM segment" is about."""
    shm = [parse_int(word) for word in found.value("shm").split()]
    files = None if found.value("files") == "unlimited" else found.number("files")
    pids = None if found.value("pids") in {"", "max"} else found.number("pids")
    if found.server.no_shared_memory:
        return fail(
            "the server could not make its shared memory",
            "server.log says so",
            "set provision.worker.shm_size: 1g, then invoke dev.up",
        )
    if len(shm) != 2 or shm[0] is None or shm[1] is None:
        return unknown("the size of /dev/shm is not told", fix="invoke dev.exec -- df /dev/shm")
    if shm[1] < LEAST_FREE_SHM_MIB:
        return fail(
            f"{shm[1]} MiB of /dev/shm are free",
            f"of {shm[0]} MiB",
            "set provision.worker.shm_size: 1g, then invoke dev.up",
        )
    if shm[0] <= DEFAULT_SHM_MIB:
        why = f"{DEFAULT_SHM_MIB} MiB were seen to suffice for three clients"
        return warn(
            f"only {shm[0]} MiB of /dev/shm",
            why,
            "set provision.worker.shm_size: 1g, then invoke dev.up",
        )
    if files is not None and files < LEAST_FILES:
        return warn(
            f"{files} open files at most",
            f"NVIDIA recommends {LEAST_FILES} or more",
            "invoke dev.up   (--ulimit nofile=16384:16384)",
        )
    if pids is not None and pids < LEAST_PIDS:
        return warn(
            f"{pids} processes at most",
            "each client has threads of its own",
            "start the container without --pids-limit",
        )
    return ok(f"{shm[0]:,} MiB of /dev/shm, {found.value('files')} open files")


def cpus(found: Found) -> Judged:
    """No more workers than cores, and no more threads than that either."""
    number, workers = found.number("cpus"), max(len(found.daemon.clients), len(found.workers))
    if not number:
        return unknown("the number of cores is not told")
    if workers > number:
        what = f"{workers} workers on {counted(number, 'core')}"
        return warn(
            what,
            "they slow one another down before they reach the GPU",
            f"run {counted(number, 'worker')} or fewer",
        )
    threads = _threads(found, number)
    if workers > 1 and threads > number:
        why = f"{workers} workers with {threads} OpenMP threads together: this was up to 64 times slower"
        fix = f"OMP_NUM_THREADS={max(1, number // workers)}, and MKL_NUM_THREADS and OPENBLAS_NUM_THREADS alike, in worker.env"
        return warn(f"more threads than the {counted(number, 'core')}", why, fix)
    return ok(f"{counted(number, 'core')}, load {found.value('load') or 'not told'}")


def _threads(found: Found, cores: int) -> int:
    """OpenMP threads of all workers: as each one's variable says, else a thread per core; the container's of whom it could not be read."""

    def each(variables: Mapping[str, str]) -> int:
        return parse_int(variables.get("OMP_NUM_THREADS", "").partition(",")[0]) or cores

    theirs = [each(worker.environment or found.environment) for worker in found.workers]
    return sum(theirs) + each(found.environment) * max(0, len(found.daemon.clients) - len(theirs))


def kernel_log(found: Found) -> Judged:
    """Faults that the driver reported."""
    if found.kernel:
        last = found.kernel[-1]
        fix = "restart the VM if CUDA still hangs with no daemon: invoke vm.reset"
        return warn(
            f"{counted(len(found.kernel), 'Xid error')}, the last one {last.number}",
            f"{last.device}: {last.text}"[:200],
            fix,
        )
    if found.value("kernel") != "yes":
        return unknown(
            "the kernel's log could not be read",
            "dmesg is not there, or not for this user",
            "sudo dmesg   (on the host)",
        )
    return ok("no fault of the GPU")
