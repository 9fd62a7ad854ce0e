"""The evidence for the checks of `mps.doctor`: scripts, and their answers as one record. Pure.

The scripts only read. What could not be read is empty, and no check takes an empty text for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.core.parsing import parse_int
from provision.core.shell import RemotePath, Script, fields, script, shell_text
from provision.mps.doctor import logs
from provision.mps.status.status import MpsStatus
from provision.resources.nvidia_smi import read_process_types

HERE = Path(__file__).parent
WATCHED = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "OMP_NUM_THREADS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
"""Variables of programs that matter to MPS."""


def worker_container_script(container: str, driver_dir: str, *, daemon: str = "") -> Script:
    """Prints the worker container's state, from outside and inside, and the driver folder's mount.

    `daemon` is the daemon's container where that is another one.
    """
    return script(
        HERE / "worker_container.sh",
        uses=["core/loaded_driver.sh"],
        name=container,
        daemon=daemon,
        driver=RemotePath(driver_dir),
        body=shell_text(HERE / "inside_container.sh", "mps/environment.sh"),
        watched=" ".join(WATCHED),
    )


def gpu_processes_script(driver_dir: str) -> Script:
    """Prints the processes of the host that run CUDA, and the driver's lines of the kernel log."""
    return script(
        HERE / "gpu_processes.sh",
        uses=["resources/nvidia_smi.sh", "mps/status/gpu_holders.sh"],
        watched=" ".join(WATCHED),
        driver=RemotePath(driver_dir),
    )


@dataclass(frozen=True)
class MpsProcess:
    """A daemon or a server of MPS in the container. A server's parent is a daemon."""

    pid: int
    parent: int
    state: str
    """As in /proc: Z is a zombie."""
    pipe: str
    """Its pipe directory; empty where it has none or is a zombie."""


@dataclass(frozen=True)
class CudaProcess:
    """A process that runs CUDA."""

    pid: int
    """On the host."""
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """Its variables among `WATCHED`."""
    libraries: frozenset[str] = frozenset()
    """Which of `tensorflow` and `jaxlib` it has loaded."""


@dataclass(frozen=True)
class Evidence:
    """Everything that the checks look at."""

    values: Mapping[str, str] = field(default_factory=dict)
    """The `key=value` lines of the scripts."""
    control: logs.ControlLog = field(default_factory=logs.ControlLog)
    server: logs.ServerLog = field(default_factory=logs.ServerLog)
    mps_processes: Sequence[MpsProcess] = ()
    cuda_processes: Sequence[CudaProcess] = ()
    process_types: Mapping[int, str] = field(default_factory=dict)
    """Type of each process by its PID on the host: `M+C` is a client of MPS, `C` is not."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The container's own variables among `WATCHED`."""
    xids: Sequence[logs.Xid] = ()
    status: MpsStatus = field(default_factory=MpsStatus)
    status_error: str = ""
    """Why the status is incomplete; empty where it was read whole."""
    probe: str = ""
    """What the probe client printed: `attached: …`, `outside: …`, `failed: …`, `unproven: …`; empty
    where it did not run."""
    options: Sequence[str] = ()
    """Pipeline options to check."""
    differs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Settings that are not in force, by key: the value in force and that of the settings."""
    wanted_gpu: str = ""
    """The GPU of the settings, index or UUID; empty where they choose none."""

    def value(self, key: str) -> str:
        """What the scripts printed for `key`; empty where they did not."""
        return self.values.get(key, "").strip()

    def number(self, key: str) -> int | None:
        """`value(key)` as a number; None where it is not one."""
        return parse_int(self.value(key))

    @property
    def client_count(self) -> int:
        """How many clients the server lists."""
        return len(self.status.clients)

    @property
    def directory_modes(self) -> Mapping[str, str]:
        """Permissions of the pipe directory and of each of its parents."""
        return {
            key[5:]: mode.strip() for key, mode in self.values.items() if key.startswith("mode.")
        }


def read_evidence(container_text: str, processes_text: str) -> Evidence:
    """What `worker_container_script` and `gpu_processes_script` printed. Never raises."""
    lines = [*container_text.split("\n"), *processes_text.split("\n")]
    return Evidence(
        values=fields("\n".join(line for line in lines if "|" not in line.partition("=")[0])),
        control=logs.control_log(_tagged_lines(container_text, "control")),
        server=logs.server_log(_tagged_lines(container_text, "server")),
        mps_processes=_mps_processes(container_text),
        cuda_processes=_cuda_processes(processes_text),
        process_types=read_process_types(_tagged_lines(processes_text, "smi")),
        environment={row[0]: row[1] for row in _rows(container_text, "own", 2)},
        xids=logs.xids(_tagged_lines(processes_text, "kernel")),
    )


def _rows(text: str, tag: str, columns: int) -> list[list[str]]:
    """The lines `tag|…` of so many columns after the tag; the last column may hold more `|`."""
    rows = (line.split("|", columns)[1:] for line in text.split("\n") if line.startswith(f"{tag}|"))
    return [row for row in rows if len(row) == columns]


def _tagged_lines(text: str, tag: str) -> str:
    return "\n".join(row[0] for row in _rows(text, tag, 1))


def _mps_processes(text: str) -> list[MpsProcess]:
    processes = []
    for pid_text, parent_text, state, pipe in _rows(text, "process", 4):
        pid, parent = parse_int(pid_text), parse_int(parent_text)
        if pid is not None and parent is not None:
            processes.append(MpsProcess(pid, parent, state, pipe))
    return processes


def _cuda_processes(text: str) -> list[CudaProcess]:
    environments: dict[str, dict[str, str]] = {}
    for pid, variable, value in _rows(text, "env", 3):
        environments.setdefault(pid, {})[variable] = value
    libraries: dict[str, set[str]] = {}
    for pid, library in _rows(text, "uses", 2):
        libraries.setdefault(pid, set()).add(library)
    return [
        CudaProcess(
            number, name, environments.get(pid, {}), frozenset(libraries.get(pid, frozenset()))
        )
        for pid, name in _rows(text, "worker", 2)
        if (number := parse_int(pid))
    ]
