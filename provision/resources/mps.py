"""The MPS control daemon inside the worker container. Pure.

Sources: the NVIDIA MPS guide (control commands, environment, server states); measured: docs/facts.md. The control
tool exits 0 for unknown commands and missing servers alike, and a socket file proves nothing, so only what it prints
counts: a daemon that answers a query with a number is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.model import Facts, State
from provision.mps import parse
from provision.resource import Diagnosis, Resource
from provision.resources.boot import FRAGMENTS
from provision.shell import Script, fields, script

# Runs inside the container, whose environment names the pipe and log directories.
_IN_CONTAINER = """
R=${PROVISION_MOCK_ROOT-}
ask() { echo "$1" | timeout 10 nvidia-cuda-mps-control 2>&1 || true; }
numeric() { case $1 in '' | *[!0-9.]*) return 1 ;; esac; }
answers() { numeric "$(ask get_default_active_thread_percentage)"; }
servers() { for pid in $(ask get_server_list); do case $pid in *[!0-9]*) ;; *) echo "$pid" ;; esac; done; }
"""
_STATUS_BODY = (
    _IN_CONTAINER
    + """
echo "percentage=$(ask get_default_active_thread_percentage | head -n 1)"
answers || exit 0
for server in $(servers); do
    echo "server.$server=$(ask "get_server_status $server" | head -n 1)"
    uid=$(sed -n 's/^Uid:[[:space:]]*\\([0-9]*\\).*/\\1/p' "/proc/$server/status" 2>/dev/null || true)
    test -z "$uid" || echo "uid.$server=$uid"
    for client in $(ask "get_client_list $server"); do
        case $client in
            *[!0-9]*) ;;
            *) echo "client.$client=$(tr '\\0' ' ' <"/proc/$client/cmdline" 2>/dev/null || true)" ;;
        esac
    done
done
"""
)
_ENABLE_BODY = (
    _IN_CONTAINER
    + """
record=$R/run/provision-mps
for dir in "$R$CUDA_MPS_PIPE_DIRECTORY" "$R$CUDA_MPS_LOG_DIRECTORY"; do
    test ! -d "$dir" || continue
    mkdir -p "$dir"
    echo "$dir" >>"$record"
done
if ! answers; then
    nvidia-cuda-mps-control -d </dev/null
fi
tries=0
until answers; do
    test "$tries" -lt 50 || { echo "the control daemon does not answer: $(ask get_server_list)"; exit 1; }
    tries=$((tries + 1))
    sleep 0.2
done
if test "$(printf '%.1f' "$2")" != "$(printf '%.1f' "$(ask get_default_active_thread_percentage | head -n 1)")"; then
    test -z "$(servers)" || { echo 'a server runs with another thread percentage'; exit 1; }
    ask "set_default_active_thread_percentage $2" >/dev/null
fi
test -n "$1" || exit 0
test -n "$(servers)" || ask "start_server -uid $(id -u)"
tries=0
while :; do
    state=
    for server in $(servers); do state=$(ask "get_server_status $server"); done
    test "$state" != ACTIVE || exit 0
    test "$tries" -lt 150 || break
    tries=$((tries + 1))
    sleep 0.2
done
echo "the MPS server is not ACTIVE: ${state:-no server}"
tail -n 5 "$R$CUDA_MPS_LOG_DIRECTORY/control.log" 2>/dev/null || true
exit 1
"""
)
_DISABLE_BODY = (
    _IN_CONTAINER
    + """
record=$R/run/provision-mps
if answers; then ask 'quit -t 10'; fi
tries=0
while answers; do
    test "$tries" -lt 100 || { echo 'the control daemon does not end'; exit 1; }
    tries=$((tries + 1))
    sleep 0.2
done
if test -r "$record"; then
    while IFS= read -r dir; do rm -rf "$dir"; done <"$record"
    rm -f "$record"
fi
"""
)


def status_script(container: str, if_enabled: str = "") -> Script:
    """Everything `read_status` needs, in one script; `enabled=no` alone where the boot fragment `if_enabled` is absent."""
    return script(
        """
if test -n "$fragment" && ! test -e "$fragment"; then
    echo "enabled=no"
    exit 0
fi
running=$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null || true)
echo "container=$running"
test "$running" = true || exit 0
docker exec "$name" sh -c "$body" provision || true
echo "compute_mode=$(docker exec "$name" nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null | head -n 1)"
""",
        name=container,
        body=_STATUS_BODY,
        fragment=FRAGMENTS / if_enabled if if_enabled else "",
    )


@dataclass(frozen=True)
class MpsClient:
    """A process attached to the server, as the daemon's own PID namespace numbers it."""

    pid: int
    command: str


@dataclass(frozen=True)
class MpsStatus:
    """What the control daemon says of itself. `server_state` is INITIALIZING, ACTIVE or FAULT; empty without a server."""

    container_running: bool = False
    daemon: bool = False
    said: str = ""
    server_pid: int | None = None
    server_state: str = ""
    server_uid: int | None = None
    thread_percentage: float | None = None
    compute_mode: str = ""
    clients: Sequence[MpsClient] = ()


def read_status(text: str) -> MpsStatus:
    """What `status_script` printed. Never raises: what cannot be read is missing."""
    found = fields(text)
    said = found.get("percentage", "").strip()
    servers = [(number, parse.server_state(state)) for key, state in found.items() if (number := _numbered(key, "server")) is not None]
    pid, state = servers[-1] if servers else (None, "")
    clients = [MpsClient(number, value.strip()) for key, value in found.items() if (number := _numbered(key, "client")) is not None]
    percentage = parse.percentage(said)
    return MpsStatus(
        container_running=found.get("container", "").strip() == "true",
        daemon=percentage is not None,
        said=said,
        server_pid=pid,
        server_state=state,
        server_uid=parse.whole(found.get(f"uid.{pid}", "")),
        thread_percentage=percentage,
        compute_mode=found.get("compute_mode", "").strip(),
        clients=clients,
    )


def _numbered(key: str, kind: str) -> int | None:
    head, _, number = key.partition(".")
    return parse.whole(number) if head == kind else None


@dataclass(frozen=True, kw_only=True)
class MpsDaemon(Resource):
    """A control daemon that answers in the container and, where there is a GPU, a server that is ACTIVE.

    With `present=False`: no daemon, and the directories that enabling made are gone.
    """

    container: str
    present: bool = True
    thread_percentage: int = 100
    timeout_s: float = 90.0

    def probe(self) -> Script:
        """Ask the daemon."""
        return status_script(self.container)

    def read(self, text: str) -> State | None:
        """`{"daemon", "server", "thread_percentage"}`; None when no daemon answers."""
        status = read_status(text)
        if not status.daemon:
            return None
        return {"daemon": True, "server": status.server_state, "thread_percentage": status.thread_percentage}

    def desired(self, facts: Facts) -> State | None:
        """A daemon and an ACTIVE server; only a daemon where there is no GPU."""
        if not self.present:
            return None
        wanted: State = {"daemon": True, "thread_percentage": float(self.thread_percentage)}
        return {**wanted, "server": "ACTIVE"} if _has_gpu(facts) else wanted

    def ensure(self, facts: Facts) -> Script | None:
        """Directories, daemon, server, wait; or quit, wait, clean up."""
        return script(
            'docker exec "$name" sh -eu -c "$body" provision "$gpu" "$percentage"',
            name=self.container,
            body=_ENABLE_BODY if self.present else _DISABLE_BODY,
            gpu="yes" if _has_gpu(facts) else "",
            percentage=self.thread_percentage,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """The texts of the control tool and of Docker."""
        if "No such container" in output or "is not running" in output:
            return Diagnosis("the worker container is not running", "invoke dev.up")
        if "not found" in output and "nvidia-cuda-mps-control" in output:
            return Diagnosis("the container has no MPS binaries on its PATH", "invoke dev.up   (mounts the driver folder)")
        if "ermission denied" in output:
            return Diagnosis(
                "the MPS binaries are not executable: the driver folder is mounted noexec", "invoke vm.provision, then invoke dev.up"
            )
        if "another thread percentage" in output:
            return Diagnosis("a running MPS server keeps its thread percentage", "invoke mps.disable, then invoke mps.enable")
        if "the MPS server is not ACTIVE" in output:
            return Diagnosis("the MPS server did not become ACTIVE", "invoke dev.exec -- sh -c 'cat $CUDA_MPS_LOG_DIRECTORY/control.log'")
        return None


@dataclass(frozen=True, kw_only=True)
class MpsAsChosen(MpsDaemon):
    """MPS on where it was enabled on this host, whatever it is where it was not.

    A host remembers the choice by the boot fragment `fragment`; a container that was recreated gets its daemon back.
    """

    fragment: str

    def probe(self) -> Script:
        """Ask the daemon, where it is wanted."""
        return status_script(self.container, self.fragment)

    def read(self, text: str) -> State | None:
        """`{"chosen", "as_chosen"}`."""
        chosen = fields(text).get("enabled") != "no"
        status = read_status(text)
        return {"chosen": "on" if chosen else "off", "as_chosen": not chosen or (status.daemon and status.server_state in {"", "ACTIVE"})}

    def desired(self, facts: Facts) -> State | None:  # noqa: ARG002
        """`{"as_chosen": True}`."""
        return {"as_chosen": True}


def _has_gpu(facts: Facts) -> bool:
    return bool(facts.gpus or facts.driver_loaded)
