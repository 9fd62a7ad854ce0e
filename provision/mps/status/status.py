"""What MPS says of itself on a host, and who uses the GPU: one script, and its answer as a record. Pure.

A CUDA process holds /dev/nvidia-uvm open, which tools that only ask the driver do not; of other
users' processes only root sees it. nvidia-smi on the host names whoever has a context, and its
memory. Who is found either way and is in the list of no server runs *outside* MPS: a client that
cannot reach a daemon runs without it and says nothing (NVIDIA MPS guide, architecture).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from provision.core.parsing import parse_int
from provision.core.shell import RemotePath, Script, fields, script
from provision.mps.status import control_tool, inside
from provision.mps.status.gpu_holders import HOLDERS
from provision.resources import nvidia_smi
from provision.resources.boot import FRAGMENTS
from provision.resources.driver import DRIVER_DIR

_STATUS = """
if test -n "$if_others"; then
    others=
    for pid in $(sh -c "$holders" provision "$R"); do
        read -r comm <"/proc/$pid/comm" || continue
        case $comm in nvidia-cuda-mps*) ;; *) others=yes ;; esac
    done 2>/dev/null
    test -n "$others" || exit 0
fi
if test -n "$fragment" && ! test -e "$fragment"; then
    echo "enabled=no"
    exit 0
fi
found=$(docker container inspect -f '{{.State.Running}}|{{.HostConfig.PidMode}}' "$name" 2>/dev/null || true)
echo "container=${found%%|*}"
case $found in
    'true|container:'*) test -z "$alone" || { echo "container=joined"; exit 0; } ;;
    'true|'*) ;;
    *) exit 0 ;;
esac
boxes=$name
test -z "$worker" || boxes=$(echo "$worker"; docker ps --filter "label=provision.sibling=$worker" --format '{{.Names}}' | sort)
key=$(printf '%s\\n' "$boxes" | xargs docker container inspect -f '{{.Id}}{{.State.StartedAt}}' 2>/dev/null | cksum | tr -d ' \\n')
docker exec "$name" sh -c "$body" provision "$key" "$device" "$users" || true
test -n "$users" || exit 0
echo "boxes=$(printf '%s' "$boxes" | tr '\\n' ' ')"
test -z "$worker" || {
    echo "running=$(docker ps --format '{{.Names}}' | tr '\\n' ' ')"
    echo "workers=${workers:-$(grep -c '^processor' "$R/proc/cpuinfo" 2>/dev/null || nproc)}"
}
echo "chosen=$device"
smi() { LD_LIBRARY_PATH=$driver/lib64 timeout 20 "$driver/bin/nvidia-smi" "$@" 2>/dev/null; }
apps=
if test -x "$driver/bin/nvidia-smi"; then
    smi --query-gpu="$gpu_fields" --format=csv,noheader,nounits | sed 's/^/gpu|/'
    if apps=$(smi --query-compute-apps="$app_fields" --format=csv,noheader,nounits); then told=yes; fi
    printf '%s\\n' "$apps" | sed '/./s/^/app|/'
    test -z "$device" || smi --query-compute-apps="$place_fields" --format=csv,noheader | sed 's/^/place|/'
    smi | sed -n '/CUDA.*Version/s/^/smi|/p'
fi
# Without root, what other users' processes hold open is not to be seen; nvidia-smi names those that have a context.
{ test -r /proc/1/fd || test -n "${told-}"; } && test -r /proc/1/status || echo 'users=unknown'
pids=$(sh -c "$holders" provision "$R" && printf '%s\\n' "$apps" | sed -n 's/^\\([0-9][0-9]*\\),.*/\\1/p')
test -n "$pids" || exit 0
for box in $(docker ps --format '{{.Names}}'); do
    docker top "$box" -eo pid 2>/dev/null | sed -n "s/^ *\\([0-9][0-9]*\\).*/top|\\1|$box/p"
done
for pid in $(printf '%s\\n' "$pids" | sort -u); do
    read -r comm <"/proc/$pid/comm" || continue
    inner=$(sed -n 's/^NSpid:.*[[:space:]]\\([0-9]*\\)$/\\1/p' "/proc/$pid/status")
    echo "holder|$pid|${inner:-$pid}|$comm|$(tr '\\0\\n' '  ' <"/proc/$pid/cmdline")"
done 2>/dev/null
"""


def status_script(
    container: str,
    *,
    worker: str = "",
    workers: int | None = None,
    if_enabled: str = "",
    alone: bool = False,
    device: str = "",
    users: bool = False,
    if_others: bool = False,
    driver_dir: str = DRIVER_DIR.path,
) -> Script:
    """Everything `read_status` needs, in one script.

    `container` is the daemon's, `worker` the first worker container where that is another one, of
    so many `workers` (None = one for each CPU). `enabled=no` alone comes where the boot fragment
    `if_enabled` is absent; with `alone`, a container that lives in the namespaces of another one
    has no daemon of its own. `device` is the GPU that the settings choose; `users` adds clients,
    that GPU and who uses it. Nothing at all comes with `if_others` while nobody but MPS is seen to
    hold a GPU: nvidia-smi and docker are not asked for nothing.
    """
    return script(
        _STATUS,
        name=container,
        worker=worker,
        workers="" if workers is None else workers,
        fragment=FRAGMENTS / if_enabled if if_enabled else "",
        alone="yes" if alone else "",
        device=device,
        users="yes" if users else "",
        if_others="yes" if if_others else "",
        driver=RemotePath(driver_dir),
        gpu_fields=nvidia_smi.GPU_FIELDS,
        app_fields=nvidia_smi.PROCESS_FIELDS,
        place_fields=nvidia_smi.PROCESS_GPU_FIELDS,
        body=inside.STATUS,
        holders=HOLDERS,
    )


@dataclass(frozen=True)
class MpsClient:
    """A process that uses the GPU. `pid` is that of its container; `memory_mib` None where nvidia-smi does not tell it."""

    pid: int
    command: str
    container: str = ""
    memory_mib: int | None = None
    host_pid: int | None = None


@dataclass(frozen=True)
class MpsStatus:
    """What the control daemon says of itself, and who uses the GPU: the one that the settings choose, else any of the host.

    `server_state` is INITIALIZING, ACTIVE or FAULT, empty without a server. `thread_percentage` and
    `memory_limit` (as the tool takes it, `4G`; None = no limit) are those in force: the server's,
    or the next one's. `cpus` is the daemon's affinity, `all` where it is the container's;
    `cpu_list` is a list in any case. `proof` holds what the probe client in each container said of
    this very server; empty where it was not tried since.
    """

    container_running: bool = False
    daemon: bool = False
    said: str = ""
    left: str = ""
    """Processes of MPS that live while no daemon answers."""
    named: Sequence[control_tool.V3Server] = ()
    """Servers of a daemon of MPS v3 (drivers from 610 on, where asked for), which is not ours: it
    knows other commands."""
    daemon_pid: int | None = None
    server_pid: int | None = None
    server_state: str = ""
    server_uid: int | None = None
    thread_percentage: float | None = None
    memory_limit: str | None = None
    cpus: str = ""
    cpu_list: str = ""
    gpu: str = ""
    gpu_indices: tuple[tuple[str, str], ...] = ()
    """(index, UUID) of every GPU, where the settings choose one by its index."""
    proof: tuple[tuple[str, str], ...] = ()
    workers: int | None = None
    """How many worker containers there should be; None where the daemon's is the only one."""
    missing: tuple[str, ...] = ()
    """Those that do not run."""
    clients: Sequence[MpsClient] = ()
    outside: Sequence[MpsClient] = ()
    outside_known: bool = True
    """False where neither open files nor nvidia-smi tell who uses the GPU: `outside` may lack some
    then."""
    elsewhere: frozenset[int] = frozenset()
    """Host PIDs of the processes that use other GPUs than the chosen one alone."""
    gpus: Sequence[nvidia_smi.SmiGpu] = ()
    cuda: tuple[int, int] | None = None

    @property
    def attached(self) -> bool:
        """True where a probe client of every container was found in the server's list."""
        return bool(self.proof) and all(said.startswith("attached") for _, said in self.proof)

    @property
    def silence(self) -> str:
        """Why no daemon answers, as far as anything tells it."""
        return f"processes of MPS live and do not answer: {self.left}" if self.left else self.said

    @property
    def compute_mode(self) -> str:
        """As nvidia-smi calls it; empty where it does not say."""
        return ", ".join(dict.fromkeys(gpu.compute_mode for gpu in self.gpus))


def read_status(text: str) -> MpsStatus:
    """What `status_script` printed. What the control tool did not say is missing; raises `ProbeUnreadable` for a broken table."""
    found = fields(text)
    said = found.get("percentage", "").strip()
    default = control_tool.read_percentage(said)
    servers = [
        (pid, value)
        for key, value in found.items()
        if key.startswith("server.") and parse_int(pid := key[7:]) is not None
    ]
    pid, state = servers[-1] if servers else ("", "")
    share = control_tool.read_percentage(found.get(f"share.{pid}", ""))
    gpus = _chosen(nvidia_smi.read_gpus(_tail(text, "gpu")), found.get("chosen", "").strip())
    elsewhere = _elsewhere(text, gpus)
    workers = parse_int(found.get("workers", ""))
    clients, outside = _users(text, found, elsewhere)
    return MpsStatus(
        container_running=found.get("container", "").strip() == "true",
        daemon=default is not None,
        said=said,
        left=found.get("left", "").strip(),
        named=control_tool.read_v3_servers(_tail(text, "named")),
        daemon_pid=parse_int(found.get("daemon", "")),
        server_pid=parse_int(pid),
        server_state=control_tool.read_server_state(state),
        server_uid=parse_int(found.get(f"uid.{pid}", "")),
        thread_percentage=default if share is None else share,
        memory_limit=_limit(
            found.get(f"memory.{pid}", found.get("memory", "")), found.get("planned_memory", "")
        ),
        cpus=found.get("cpus", "").strip(),
        cpu_list=found.get("cpu_list", "").strip(),
        gpu=found.get("visible", "").strip(),
        gpu_indices=tuple(
            (index, uuid)
            for index, _, uuid in (word.partition(",") for word in found.get("indices", "").split())
        ),
        proof=tuple(
            (key[7:], value.strip()) for key, value in found.items() if key.startswith("proven.")
        )
        if "proof" in found
        else (),
        workers=workers,
        missing=_missing(found, workers),
        clients=clients,
        outside=outside,
        outside_known=found.get("users", "").strip() != "unknown",
        elsewhere=elsewhere,
        gpus=gpus,
        cuda=nvidia_smi.read_cuda_version(_tail(text, "smi")),
    )


def _missing(found: Mapping[str, str], workers: int | None) -> tuple[str, ...]:
    """Worker containers that should run and do not; the settings allow 1024."""
    boxes, running = found.get("boxes", "").split(), set(found.get("running", "").split())
    names = (
        [boxes[0], *(f"{boxes[0]}-{number}" for number in range(2, min(workers, 1024) + 1))]
        if boxes and workers
        else []
    )
    return tuple(name for name in names if name not in running)


def _limit(said: str, planned: str) -> str | None:
    """The limit in force: as planned where what the tool shows of it is that; else what it shows, whole gigabytes alone above one."""
    shown = control_tool.read_memory_limit_mib(said)
    if shown is None:
        return None
    wanted = control_tool.read_memory_limit_mib(planned)
    if wanted is not None and shown == (wanted // 1024 * 1024 if wanted >= 1024 else wanted):
        return planned.strip()
    return said.strip()


def _tail(text: str, mark: str) -> str:
    """The lines that begin with `mark|`, without it."""
    return "\n".join(
        line.partition("|")[2] for line in text.split("\n") if line.startswith(f"{mark}|")
    )


def _rows(text: str, mark: str, count: int) -> list[list[str]]:
    rows = (
        line.split("|", count - 1)[1:] for line in text.split("\n") if line.startswith(f"{mark}|")
    )
    return [row for row in rows if len(row) == count - 1 and parse_int(row[0]) is not None]


def _chosen(gpus: Sequence[nvidia_smi.SmiGpu], wanted: str) -> Sequence[nvidia_smi.SmiGpu]:
    """The GPU that the settings choose by its index or its UUID; all where they choose none."""
    if not wanted:
        return gpus
    index = parse_int(wanted)
    return [gpu for gpu in gpus if (gpu.uuid == wanted if index is None else gpu.index == index)]


def _elsewhere(text: str, gpus: Sequence[nvidia_smi.SmiGpu]) -> frozenset[int]:
    """Host PIDs of the processes that use other GPUs alone; asked for where the settings choose one.

    Whom nvidia-smi does not name, or names without the UUID of a GPU, may use any: a CUDA program
    opens the nodes of every GPU that it may see.
    """
    mine = {gpu.uuid for gpu in gpus}
    places = nvidia_smi.read_process_gpus(_tail(text, "place"))
    others = {
        pid
        for pid, uuids in places.items()
        if not uuids & mine and all(uuid.startswith("GPU-") for uuid in uuids)
    }
    return frozenset(others if mine else ())


def _users(
    text: str, found: Mapping[str, str], elsewhere: frozenset[int]
) -> tuple[list[MpsClient], list[MpsClient]]:
    """The clients that the server lists, and who else uses the GPU.

    A holder of the GPU is known by its host's PID, a client by that of its container; `docker top`
    says whose it is.
    """
    memory = {
        process.pid: process.memory_mib for process in nvidia_smi.read_processes(_tail(text, "app"))
    }
    homes = {row[0]: row[1] for row in _rows(text, "top", 3)}
    boxes = found.get("boxes", "").split()
    listed = {
        key[7:]: value.strip()
        for key, value in found.items()
        if key.startswith("client.") and parse_int(key[7:]) is not None
    }
    clients, outside = {}, []
    listed.update(
        {
            str(client.pid): client.command
            for client in control_tool.read_v3_clients(_tail(text, "client"))
        }
    )
    for host_pid, inner, comm, command in _rows(text, "holder", 5):
        box, pid = homes.get(host_pid, ""), parse_int(inner)
        if pid is None:
            continue
        user = MpsClient(
            pid, command.strip() or comm, box, memory.get(int(host_pid)), int(host_pid)
        )
        if inner in listed and (box in boxes or not boxes):
            clients[inner] = replace(user, command=listed[inner] or user.command)
        elif not comm.startswith("nvidia-cuda-mps") and int(host_pid) not in elsewhere:
            outside.append(user)
    alone = boxes[0] if len(boxes) == 1 else ""
    return [
        clients.get(pid) or MpsClient(int(pid), command, alone) for pid, command in listed.items()
    ], outside
