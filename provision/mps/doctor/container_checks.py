"""Checks of the worker container: its state, devices, programs and limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from provision.core.parsing import parse_int
from provision.mps.doctor.evidence import Evidence
from provision.mps.doctor.finding import Finding, fail, ok, unknown, warn
from provision.mps.plan.advice import DEFAULT_SHM_MIB
from provision.report.text import count_phrase

MIN_FILES = 16_384
MIN_PIDS = 1024
MIN_FREE_SHM_MIB = 16


def container(evidence: Evidence) -> Finding:
    """The containers of the settings' topology run and have a shell and glibc.

    Both MPS binaries are linked against glibc.
    """
    if problem := _not_running(evidence):
        return problem
    if evidence.value("inside") != "yes":
        return unknown(
            "nothing can be run in the container",
            "its image may have no shell",
            "invoke dev.exec -- sh -c true",
        )
    if not evidence.value("glibc"):
        return fail(
            "the image has no glibc",
            "nvidia-cuda-mps-control and its server need glibc's loader; musl images such as Alpine"
            " do not have it",
            "use an image based on Debian or Ubuntu: MPS binaries do not run on Alpine",
        )
    return ok(f"running, {evidence.value('glibc')}")


def _not_running(evidence: Evidence) -> Finding | None:
    """A container that is missing or of the other topology; None where all run."""
    daemon_container, state = evidence.value("daemon_container"), evidence.value("running")
    is_joined = evidence.value("pid_mode").startswith("container:")
    if state == "true" and is_joined != bool(daemon_container):
        topology = "containers" if daemon_container else "container"
        return fail(
            "the containers are not those of the settings",
            f"mps.topology is {topology}, and they were created for the other one",
            "invoke mps.enable   (recreates them)",
        )
    daemon_state = evidence.value("daemon_running")
    if daemon_container and state and daemon_state != "true":
        return fail(
            f"the container {daemon_container} is not running",
            f"{_why_not_running(daemon_state)}: the MPS daemon lives in it, and so do the workers'"
            " processes",
            "invoke dev.up",
        )
    if state != "true":
        return fail("the worker container is not running", _why_not_running(state), "invoke dev.up")
    if missing := evidence.status.missing_workers:
        total = evidence.status.worker_count or 0
        running = total - len(missing)
        verb = "runs" if running == 1 else "run"
        return fail(
            f"{running} of {count_phrase(total, 'worker container')} {verb}",
            f"not running: {', '.join(missing)}",
            "invoke dev.up",
        )
    return None


def _why_not_running(state: str) -> str:
    """By what Docker prints of a container that does not run."""
    return "it was created, and has ended" if state else "there is no such container"


def devices(evidence: Evidence) -> Finding:
    """The container has the three device nodes and sees one GPU, or the chosen one.

    MPS on Dataflow is for workers with a single GPU.
    """
    nodes = ("nvidia0", "nvidiactl", "nvidia-uvm")
    missing = [f"/dev/{name}" for name in nodes if evidence.value(f"node.{name}") != "yes"]
    if missing:
        return fail(
            f"the container lacks {', '.join(missing)}",
            "no --device for them, and not --privileged",
            "invoke vm.provision, then invoke dev.up   (a container gets them when it is created)",
        )
    count, wanted = evidence.number("smi_gpus") or 0, evidence.wanted_gpu
    listed = [word.partition(",") for word in evidence.value("smi_uuids").split()]
    if wanted and listed and not any(wanted in {index, uuid} for index, _, uuid in listed):
        indices = ", ".join(index for index, _, _ in listed)
        return fail(
            f"there is no GPU {wanted}",
            f"mps.gpu chooses it, and nvidia-smi lists {indices}",
            "invoke dev.exec -- nvidia-smi -L",
        )
    if count > 1 and wanted:
        return ok(f"device nodes are there, of {count} GPUs the settings choose {wanted}")
    if count > 1:
        return warn(
            f"the container sees {count} GPUs",
            "MPS on Dataflow is for workers with a single GPU",
            "set provision.mps.gpu to the index or UUID of one",
        )
    return ok("device nodes are there" + (", one GPU" if count == 1 else ""))


def executable(evidence: Evidence) -> Finding:
    """The driver's programs may be executed: Container-Optimized OS mounts their volume noexec."""
    printed = f"{evidence.value('smi_said')} {evidence.value('control_said')}"
    is_noexec = "noexec" in evidence.value("mount").split(",")
    if "ermission denied" in printed or (is_noexec and not evidence.value("control_said")):
        return fail(
            "the driver's programs may not be executed",
            evidence.value("mount") or printed.strip(),
            "invoke vm.provision, then invoke dev.up   (mount --bind, then mount -o remount,exec"
            " on the driver's folder)",
        )
    return ok("the driver's programs run")


def binaries(evidence: Evidence) -> Finding:
    """Both MPS programs are on PATH and libcuda is found.

    The daemon starts the server by name.
    """
    programs = {"control": "nvidia-cuda-mps-control", "server": "nvidia-cuda-mps-server"}
    missing = [name for key, name in programs.items() if not evidence.value(key)]
    if missing:
        return fail(
            f"{' and '.join(missing)} not on PATH",
            "the daemon starts its server by name",
            "invoke dev.up   (puts /usr/local/nvidia/bin on PATH)",
        )
    if not evidence.value("library"):
        return fail(
            "libcuda.so.1 is not found",
            "the server loads it, and without it ends before it writes to server.log",
            "invoke dev.up   (puts /usr/local/nvidia/lib64 into LD_LIBRARY_PATH)",
        )
    return ok("control tool, server and libcuda are found")


def limits(evidence: Evidence) -> Finding:
    """Shared memory, open files and processes suffice.

    Too little of them makes the server fail with "failed to create/open SHM segment".
    """
    return _shared_memory(evidence) or _file_and_process_limits(evidence) or _limits_ok(evidence)


def _shm_mib(evidence: Evidence) -> tuple[int, int] | None:
    """Size and free space of /dev/shm; None where they are not known."""
    sizes = [parse_int(word) for word in evidence.value("shm").split()]
    known = [size for size in sizes if size is not None]
    return (known[0], known[1]) if len(sizes) == len(known) == 2 else None


def _shared_memory(evidence: Evidence) -> Finding | None:
    fix = "set provision.worker.shm_size: 1g, then invoke dev.up"
    shm = _shm_mib(evidence)
    if evidence.server.no_shared_memory:
        return fail("the server could not create its shared memory", "see server.log", fix)
    if shm is None:
        return unknown("the size of /dev/shm is not known", fix="invoke dev.exec -- df /dev/shm")
    size, free = shm
    if free < MIN_FREE_SHM_MIB:
        return fail(f"{free} MiB of /dev/shm are free", f"of {size} MiB", fix)
    if size <= DEFAULT_SHM_MIB:
        why = f"{DEFAULT_SHM_MIB} MiB sufficed for three clients in a measurement"
        return warn(f"only {size} MiB of /dev/shm", why, fix)
    return None


def _file_and_process_limits(evidence: Evidence) -> Finding | None:
    files, pids = evidence.number("files"), evidence.number("pids")
    if files is not None and files < MIN_FILES:
        return warn(
            f"{files} open files at most",
            f"NVIDIA recommends {MIN_FILES} or more",
            "invoke dev.up   (--ulimit nofile=16384:16384)",
        )
    if pids is not None and pids < MIN_PIDS:
        return warn(
            f"{pids} processes at most",
            "each client has threads of its own",
            "start the container without --pids-limit",
        )
    return None


def _limits_ok(evidence: Evidence) -> Finding:
    size, _ = _shm_mib(evidence) or (0, 0)
    return ok(f"{size:,} MiB of /dev/shm, {evidence.value('files')} open files")


def cpus(evidence: Evidence) -> Finding:
    """There are at most as many workers, and threads of all workers, as cores."""
    cores = evidence.number("cpus")
    workers = max(evidence.client_count, len(evidence.cuda_processes))
    if not cores:
        return unknown("the number of cores is not known")
    if workers > cores:
        return warn(
            f"{workers} workers on {count_phrase(cores, 'core')}",
            "they slow one another down before they reach the GPU",
            f"run {count_phrase(cores, 'worker')} or fewer",
        )
    threads = _thread_count(evidence, cores)
    if workers > 1 and threads > cores:
        return warn(
            f"more threads than the {count_phrase(cores, 'core')}",
            f"{workers} workers with {threads} OpenMP threads together: this was up to 64 times"
            " slower",
            f"OMP_NUM_THREADS={max(1, cores // workers)}, and MKL_NUM_THREADS and"
            " OPENBLAS_NUM_THREADS alike, in worker.env",
        )
    return ok(f"{count_phrase(cores, 'core')}, load {evidence.value('load') or 'not known'}")


def _thread_count(evidence: Evidence, cores: int) -> int:
    """OpenMP threads of all workers.

    OMP_NUM_THREADS of each worker, else one for each core. The container's variable counts for
    workers whose environment could not be read.
    """

    def threads(variables: Mapping[str, str]) -> int:
        return parse_int(variables.get("OMP_NUM_THREADS", "").partition(",")[0]) or cores

    processes = evidence.cuda_processes
    unseen = max(0, evidence.client_count - len(processes))
    known = sum(threads(process.environment or evidence.environment) for process in processes)
    return known + threads(evidence.environment) * unseen
