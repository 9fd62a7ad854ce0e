"""What `mps.doctor` looks at: one script in the worker container and one on its host, and their answers as one record. Pure.

Everything here only reads. What could not be read is an empty text, and an empty text is never
taken for good news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from provision.core.parsing import parse_int
from provision.core.shell import RemotePath, Script, fields, script
from provision.mps.doctor import logs
from provision.mps.status.gpu_holders import HOLDERS
from provision.resources import nvidia_smi

WATCHED = (
    *(
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    ),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS", "TF_FORCE_GPU_ALLOW_GROWTH"),
    *("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
)
"""Variables of workers that matter to MPS."""

# GNU's nproc takes OMP_NUM_THREADS, which every worker has, for the number of cores. Directories
# are walked up to the root: the server is forked, becomes the client's user and has to pass all of
# them.
_INSIDE = """
R=${PROVISION_MOCK_ROOT-}
echo inside=yes
echo "glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null || true)"
test -n "$(getconf GNU_LIBC_VERSION 2>/dev/null)" || ! test -e "$R/lib64/ld-linux-x86-64.so.2" || echo glibc=present
for node in nvidia0 nvidiactl nvidia-uvm; do test ! -e "$R/dev/$node" || echo "node.$node=yes"; done
if smi=$(timeout 20 nvidia-smi -L 2>&1); then echo smi_status=0; else echo "smi_status=$?"; fi
echo "smi_uuids=$(printf '%s\\n' "$smi" | sed -n 's/^GPU \\([0-9]*\\): .*(UUID: \\([^)]*\\)).*/\\1,\\2/p' | tr '\\n' ' ')"
echo "smi_gpus=$(printf '%s\\n' "$smi" | grep -c '^GPU ')"
echo "smi_said=$(printf '%s\\n' "$smi" | grep -v '^ *$' | head -n 3 | tr '\\n' ' ')"
echo "control=$(command -v nvidia-cuda-mps-control || true)"
echo "server=$(command -v nvidia-cuda-mps-server || true)"
echo "control_said=$(timeout 10 nvidia-cuda-mps-control -v 2>&1 | head -n 1)"
known=$(ldconfig -p 2>/dev/null | sed -n 's/.*libcuda\\.so\\.1 ([^)]*64[^)]*) => \\(.*\\)\\/[^/]*$/\\1/p' | tr '\\n' ':')
libraries=$LD_LIBRARY_PATH:$known
IFS=:
for folder in $libraries; do
    test -n "$folder" || continue
    library=$R${folder#"$R"}/libcuda.so.1
    if test -e "$library"; then echo "library=$(readlink -f "$library")" && echo "library_in=${folder#"$R"}" && break; fi
done
unset IFS
pipe=$CUDA_MPS_PIPE_DIRECTORY log=$CUDA_MPS_LOG_DIRECTORY
echo "pipe=$pipe"
echo "log=$log"
if test -d "$R$pipe"; then
    echo "pipe_type=$(stat -f -c %T "$R$pipe" 2>/dev/null || true)"
    walk=$pipe
    while test "$walk" != / && test -n "$walk"; do
        echo "mode.$walk=$(stat -c %a "$R$walk" 2>/dev/null || true)"
        walk=$(dirname "$walk")
    done
fi
test ! -d "$R$log" || echo log_dir=yes
# The daemon writes down every question that it is asked, and its answer: a status a second would be all that there is to see.
questions='\\] (Accepting connection\\.\\.\\.|NEW UI|Cmd:.*|[0-9.]+[KMG]?|INITIALIZING|ACTIVE|FAULT|UI closed)$'
test ! -w "$R$log" || echo log_writable=yes
test ! -r "$R$log/control.log" || { echo control_log=yes; grep -avE "$questions" "$R$log/control.log" | tail -n 400 | sed 's/^/control|/'; }
test ! -r "$R$log/server.log" || tail -n 400 "$R$log/server.log" | sed 's/^/server|/'
for process in /proc/[0-9]*; do
    { read -r comm <"$process/comm" && read -r _ _ state parent _ <"$process/stat"; } 2>/dev/null || continue
    case $comm in nvidia-cuda-mps*) ;; *) continue ;; esac
    place=$(tr '\\0' '\\n' <"$process/environ" 2>/dev/null | sed -n 's/^CUDA_MPS_PIPE_DIRECTORY=//p')
    root=$(tr '\\0' '\\n' <"$process/environ" 2>/dev/null | sed -n 's/^PROVISION_MOCK_ROOT=//p')
    test "$root" = "$R" || continue
    echo "process|${process#/proc/}|$parent|$state|$place"
    case $state in Z | X) continue ;; esac
    paths=$(tr '\\0' '\\n' <"$process/environ" 2>/dev/null | sed -n 's/^PATH=//p')
    test -z "$paths" || (PATH=$paths && command -v nvidia-cuda-mps-server >/dev/null) || echo "serverless=${process#/proc/}"
done
echo "shm=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print int($2 / 1024) " " int($4 / 1024) }')"
# shellcheck disable=SC3045 # POSIX names no -n; every shell that reads this has it
echo "files=$(ulimit -n)"
echo "pids=$(cat /sys/fs/cgroup/pids.max 2>/dev/null || true)"
echo "cpus=$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT && nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"
echo "load=$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || true)"
echo "uid=$(id -u)"
for name in $1; do env | sed -n "s/^$name=/own|$name|/p"; done
"""

_LOOK = """
echo "running=$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null || true)"
echo "pid_mode=$(docker container inspect -f '{{.HostConfig.PidMode}}' "$name" 2>/dev/null || true)"
test -z "$daemon" || {
    echo "daemon_container=$daemon"
    echo "daemon_running=$(docker container inspect -f '{{.State.Running}}' "$daemon" 2>/dev/null || true)"
}
echo "image=$(docker container inspect -f '{{.Config.Image}}' "$name" 2>/dev/null || true)"
if test -r "$R/sys/module/nvidia/version"; then
    read -r module <"$R/sys/module/nvidia/version"
    echo "module=$module"
fi
echo "mount=$(findmnt -n -o OPTIONS -T "$driver" 2>/dev/null | tail -n 1)"
docker exec "$name" sh -c "$body" provision "$watched" 2>/dev/null || true
"""

# What the environment of a program says of MPS is read from the host, which may.
_WORKERS = """
for pid in $(sh -c "$holders" provision "$R"); do
    read -r comm <"/proc/$pid/comm" || continue
    case $comm in nvidia-*) continue ;; esac
    echo "worker|$pid|$comm"
    for library in tensorflow jaxlib; do
        grep -q "/$library/" "/proc/$pid/maps" && echo "uses|$pid|$library"
    done
    for variable in $watched; do
        tr '\\0' '\\n' <"/proc/$pid/environ" | sed -n "s/^$variable=/env|$pid|$variable|/p"
    done
done 2>/dev/null
smi=$driver/bin/nvidia-smi
test ! -x "$smi" || LD_LIBRARY_PATH=$driver/lib64 timeout 20 "$smi" 2>/dev/null | sed -n '/^| *[0-9].* [CGM+]* /s/^/smi|/p'
if text=$(dmesg 2>/dev/null); then
    echo kernel=yes
    printf '%s\\n' "$text" | grep -a NVRM | tail -n 50 | sed 's/^/kernel|/'
fi
true
"""


def look_script(container: str, driver_dir: str, *, daemon: str = "") -> Script:
    """The worker container from inside, and how the driver's folder is mounted on the host; `daemon` lives in a container of that name."""
    return script(
        _LOOK,
        name=container,
        daemon=daemon,
        driver=RemotePath(driver_dir),
        body=_INSIDE,
        watched=" ".join(WATCHED),
    )


def workers_script(driver_dir: str) -> Script:
    """Environments and frameworks of the processes that run CUDA, of which type nvidia-smi calls them, and the kernel's log."""
    return script(
        _WORKERS, holders=HOLDERS, watched=" ".join(WATCHED), driver=RemotePath(driver_dir)
    )


@dataclass(frozen=True)
class Process:
    """A daemon of MPS in the container, or a server, whose parent is one; `state` is that of /proc (Z is a zombie)."""

    pid: int
    parent: int
    state: str
    pipe: str


@dataclass(frozen=True)
class Worker:
    """A process that runs CUDA, by its PID on the host, and its variables among `WATCHED`."""

    pid: int
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    libraries: frozenset[str] = frozenset()
    """Which of `tensorflow` and `jaxlib` it has loaded."""


@dataclass(frozen=True)
class Daemon:
    """What the control daemon said of itself, and nvidia-smi of the GPU: the part that `mps.status` reads, too."""

    answers: bool = False
    said: str = ""
    server_state: str = ""
    server_uid: int | None = None
    thread_percentage: float | None = None
    memory_limit: str | None = None
    clients: Sequence[int] = ()
    client_hosts: Sequence[int] = ()
    """The clients by their PIDs on the host, as far as they are known."""
    outside: Sequence[str] = ()
    """`PID command` of each process that uses the GPU and is in no server's list."""
    outside_known: bool = True
    """False where nothing told who uses the GPU."""
    workers: int | None = None
    missing: Sequence[str] = ()
    """Worker containers that do not run, of so many."""
    gpus: Sequence[nvidia_smi.SmiGpu] = ()
    cuda: tuple[int, int] | None = None


@dataclass(frozen=True)
class Found:
    """Everything that the checks judge. `values` are the `key=value` lines of the scripts."""

    values: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    """Permissions of the pipe directory and of each of its parents."""
    control: logs.ControlLog = field(default_factory=logs.ControlLog)
    server: logs.ServerLog = field(default_factory=logs.ServerLog)
    processes: Sequence[Process] = ()
    workers: Sequence[Worker] = ()
    types: Mapping[int, str] = field(default_factory=dict)
    """What nvidia-smi on the host calls a process, by its PID: `M+C` is a client of MPS, `C` runs
    CUDA without it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The container's own variables."""
    kernel: Sequence[logs.Xid] = ()
    daemon: Daemon = field(default_factory=Daemon)
    probe: str = ""
    """What the probe client said: `attached: …`, `outside: …`, `failed: …`, `unproven: …`; empty
    where it did not run."""
    options: Sequence[str] = ()
    """Pipeline options that were given to be checked."""
    differs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Keys of the settings whose value is not in force: what is, and what they say."""
    wanted_gpu: str = ""
    """The GPU of the settings, by index or UUID; empty where they choose none."""

    def value(self, key: str) -> str:
        """What the scripts printed for `key`; empty where they did not."""
        return self.values.get(key, "").strip()

    def number(self, key: str) -> int | None:
        """The same as a number."""
        return parse_int(self.value(key))


def _rows(text: str, mark: str, columns: int) -> list[list[str]]:
    rows = (
        line.split("|", columns)[1:] for line in text.split("\n") if line.startswith(f"{mark}|")
    )
    return [row for row in rows if len(row) == columns]


def _tail(text: str, mark: str) -> str:
    return "\n".join(row[0] for row in _rows(text, mark, 1))


def _processes(looked: str) -> list[Process]:
    rows = (
        (parse_int(pid), parse_int(parent), state, pipe)
        for pid, parent, state, pipe in _rows(looked, "process", 4)
    )
    return [
        Process(pid, parent, state, pipe)
        for pid, parent, state, pipe in rows
        if pid is not None and parent is not None
    ]


def found(looked: str, workers: str) -> Found:
    """What `look_script` and `workers_script` printed. Never raises."""
    values = fields(
        "\n".join(
            line
            for text in (looked, workers)
            for line in text.split("\n")
            if "|" not in line.partition("=")[0]
        )
    )
    environments: dict[int, dict[str, str]] = {}
    for number, name, value in _rows(workers, "env", 3):
        environments.setdefault(parse_int(number) or 0, {})[name] = value
    libraries: dict[int, frozenset[str]] = {}
    for number, name in _rows(workers, "uses", 2):
        libraries[parse_int(number) or 0] = libraries.get(parse_int(number) or 0, frozenset()) | {
            name
        }
    running = [(pid, row[1]) for row in _rows(workers, "worker", 2) if (pid := parse_int(row[0]))]
    made = Found(
        values=values,
        modes={key[5:]: value.strip() for key, value in values.items() if key.startswith("mode.")},
        control=logs.control_log(_tail(looked, "control")),
        server=logs.server_log(_tail(looked, "server")),
        processes=_processes(looked),
        workers=[
            Worker(pid, name, environments.get(pid, {}), libraries.get(pid, frozenset()))
            for pid, name in running
        ],
        types=nvidia_smi.read_process_types(_tail(workers, "smi")),
        environment={row[0]: row[1] for row in _rows(looked, "own", 2)},
    )
    return replace(made, kernel=logs.xids(_tail(workers, "kernel")))
