"""The status of MPS on a host: the script that prints it, and its answer as one record. Pure.

mps.status, mps.top, mps.doctor and mps.enable all use this script and this record. status.sh runs
on the host and runs daemon.sh in the daemon's container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.core.parsing import parse_int
from provision.core.shell import RemotePath, Script, fields, script, shell_text
from provision.mps.status import control_tool
from provision.mps.status.control_tool import V3Server
from provision.mps.status.gpu_users import GpuUser, other_gpu_pids, read_gpu_users, tagged_lines
from provision.resources import nvidia_smi
from provision.resources.boot import FRAGMENTS
from provision.resources.container import WORKER_FUNCTIONS
from provision.resources.driver import DRIVER_DIR
from provision.resources.nvidia_smi import SmiGpu

HERE = Path(__file__).parent
DAEMON_FUNCTIONS = ("mps/environment.sh", "mps/processes.sh", "mps/control.sh")
"""Files of functions for scripts inside the daemon's container."""
_MAX_WORKERS = 1024
"""The settings allow no more worker containers."""


def status_script(
    container: str,
    *,
    worker: str = "",
    workers: int | None = None,
    if_enabled: str = "",
    skip_joined: bool = False,
    device: str = "",
    users: bool = False,
    if_others: bool = False,
    driver_dir: str = DRIVER_DIR.path,
) -> Script:
    """Prints what `read_status` reads.

    `container` is the daemon's. `worker` is the first worker container where that is another one,
    `workers` how many there should be (None: one for each CPU). With `if_enabled`, a boot fragment,
    only `enabled=no` comes where the fragment is absent. `skip_joined` ignores a container that
    joins another one's namespaces. `device` is the GPU of the settings, index or UUID. `users` adds
    clients, GPUs and their users. `if_others` prints nothing while MPS alone holds a GPU, so that
    neither nvidia-smi nor Docker is asked without need.
    """
    return script(
        HERE / "status.sh",
        uses=["resources/nvidia_smi.sh", *WORKER_FUNCTIONS, "mps/status/gpu_holders.sh"],
        name=container,
        worker=worker,
        workers="" if workers is None else workers,
        fragment=FRAGMENTS / if_enabled if if_enabled else "",
        skip_joined="yes" if skip_joined else "",
        device=device,
        users="yes" if users else "",
        if_others="yes" if if_others else "",
        driver=RemotePath(driver_dir),
        gpu_fields=nvidia_smi.GPU_FIELDS,
        process_fields=nvidia_smi.PROCESS_FIELDS,
        process_gpu_fields=nvidia_smi.PROCESS_GPU_FIELDS,
        body=shell_text(HERE / "daemon.sh", *DAEMON_FUNCTIONS),
    )


@dataclass(frozen=True)
class MpsStatus:
    """What the control daemon reports, and who uses the GPU.

    GPUs and users are those of the GPU that the settings choose, else of every GPU of the host.
    """

    container_running: bool = False
    """Whether the daemon's container runs."""
    daemon: bool = False
    """Whether a daemon answers."""
    answer: str = ""
    """The first line that the control tool printed."""
    unresponsive_pids: str = ""
    """PIDs of MPS processes that live while no daemon answers."""
    v3_servers: Sequence[V3Server] = ()
    """Servers of a daemon of MPS v3 (drivers from 610 on), which this toolkit did not start."""
    daemon_pid: int | None = None
    server_pid: int | None = None
    server_state: str = ""
    """INITIALIZING, ACTIVE or FAULT; empty without a server."""
    server_uid: int | None = None
    thread_percentage: float | None = None
    """In force: the server's, or without one the next server's."""
    memory_limit: str | None = None
    """In force, as the control tool takes it (`4G`); None for no limit."""
    cpus: str = ""
    """CPUs of the daemon; `all` where they are those of its container."""
    cpu_list: str = ""
    """The same, always as a list."""
    gpu: str = ""
    """UUID of the GPU that the daemon serves; empty for all."""
    gpu_indices: tuple[tuple[str, str], ...] = ()
    """(index, UUID) of every GPU, where the settings choose one by its index."""
    proof: tuple[tuple[str, str], ...] = ()
    """(container, what its probe client printed) for this very server; empty before a proof."""
    worker_count: int | None = None
    """How many worker containers there should be; None where the daemon's is the only one."""
    missing_workers: tuple[str, ...] = ()
    """Worker containers that do not run."""
    clients: Sequence[GpuUser] = ()
    outside: Sequence[GpuUser] = ()
    """Processes that use the GPU and are in no server's list."""
    outside_known: bool = True
    """False where neither open files nor nvidia-smi show every user of the GPU."""
    other_gpu_pids: frozenset[int] = frozenset()
    """Host PIDs of processes that use only GPUs that the settings do not choose."""
    gpus: Sequence[SmiGpu] = ()
    cuda: tuple[int, int] | None = None
    """Newest CUDA version that the driver supports."""

    @property
    def attached(self) -> bool:
        """True where the probe client of every container was in the server's list."""
        return bool(self.proof) and all(answer.startswith("attached") for _, answer in self.proof)

    @property
    def why_no_answer(self) -> str:
        """Why no daemon answers, as far as it is known."""
        if self.unresponsive_pids:
            return f"processes of MPS live and do not answer: {self.unresponsive_pids}"
        return self.answer

    @property
    def compute_mode(self) -> str:
        """The mode of the GPUs as nvidia-smi prints it; empty where it does not."""
        return ", ".join(dict.fromkeys(gpu.compute_mode for gpu in self.gpus))


def read_status(text: str) -> MpsStatus:
    """The answer of `status_script` as a record. Missing answers read None or empty.

    Raises `ProbeUnreadable` for a malformed table.
    """
    values = fields(text)
    server = _last_server(values)
    answer = values.get("percentage", "").strip()
    default_percentage = control_tool.read_percentage(answer)
    percentage = control_tool.read_percentage(values.get(f"share.{server}", ""))
    gpus = _chosen_gpus(text, values.get("chosen", "").strip())
    excluded = other_gpu_pids(text, gpus)
    clients, outside = read_gpu_users(text, values, excluded)
    worker_count = parse_int(values.get("workers", ""))
    return MpsStatus(
        container_running=values.get("container", "").strip() == "true",
        daemon=default_percentage is not None,
        answer=answer,
        unresponsive_pids=values.get("left", "").strip(),
        v3_servers=control_tool.read_v3_servers(tagged_lines(text, "named")),
        daemon_pid=parse_int(values.get("daemon", "")),
        server_pid=parse_int(server),
        server_state=control_tool.read_server_state(values.get(f"server.{server}", "")),
        server_uid=parse_int(values.get(f"uid.{server}", "")),
        thread_percentage=default_percentage if percentage is None else percentage,
        memory_limit=_memory_limit(values, server),
        cpus=values.get("cpus", "").strip(),
        cpu_list=values.get("cpu_list", "").strip(),
        gpu=values.get("visible", "").strip(),
        gpu_indices=_gpu_indices(values),
        proof=_proof(values),
        worker_count=worker_count,
        missing_workers=_missing_workers(values, worker_count),
        clients=clients,
        outside=outside,
        outside_known=values.get("users", "").strip() != "unknown",
        other_gpu_pids=excluded,
        gpus=gpus,
        cuda=nvidia_smi.read_cuda_version(tagged_lines(text, "smi")),
    )


def _last_server(values: Mapping[str, str]) -> str:
    """PID of the last server listed, since an earlier one is about to end; empty for none."""
    pids = [key[7:] for key in values if key.startswith("server.")]
    return next((pid for pid in reversed(pids) if parse_int(pid) is not None), "")


def _memory_limit(values: Mapping[str, str], server: str) -> str | None:
    """The memory limit in force; None for no limit.

    The control tool shows limits of a gigabyte and more in whole gigabytes, so the planned limit is
    returned where what the tool shows is the planned limit rounded down.
    """
    answer = values.get(f"memory.{server}", values.get("memory", "")).strip()
    planned = values.get("planned_memory", "").strip()
    shown_mib = control_tool.read_memory_limit_mib(answer)
    planned_mib = control_tool.read_memory_limit_mib(planned)
    if shown_mib is None or planned_mib is None:
        return None if shown_mib is None else answer
    rounded_mib = planned_mib // 1024 * 1024 if planned_mib >= 1024 else planned_mib
    return planned if shown_mib == rounded_mib else answer


def _chosen_gpus(text: str, device: str) -> Sequence[SmiGpu]:
    """The GPU with this index or UUID; every GPU for an empty `device`."""
    gpus = nvidia_smi.read_gpus(tagged_lines(text, "gpu"))
    index = parse_int(device)
    if not device:
        return gpus
    return [gpu for gpu in gpus if (gpu.uuid == device if index is None else gpu.index == index)]


def _gpu_indices(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    pairs = (word.partition(",") for word in values.get("indices", "").split())
    return tuple((index, uuid) for index, _, uuid in pairs)


def _proof(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Container and answer of each probe client; empty where the proof is of another server."""
    if "proof" not in values:
        return ()
    return tuple(
        (key[7:], value.strip()) for key, value in values.items() if key.startswith("proven.")
    )


def _missing_workers(values: Mapping[str, str], workers: int | None) -> tuple[str, ...]:
    """Worker containers that should run and do not."""
    containers = values.get("boxes", "").split()
    if not containers or not workers:
        return ()
    first, last = containers[0], min(workers, _MAX_WORKERS)
    running = set(values.get("running", "").split())
    names = [first, *(f"{first}-{number}" for number in range(2, last + 1))]
    return tuple(name for name in names if name not in running)
