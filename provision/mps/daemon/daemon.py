"""The MPS control daemon: started, planned, proven; or drained and gone. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Argument, Script, fields, script
from provision.mps.daemon.client import CLIENT
from provision.mps.status import inside
from provision.mps.status.status import MpsStatus, read_status, status_script

DRAIN_S = 20
"""How long clients may take to leave before a daemon is restarted or ended; whoever stays is
named."""

# The image may have a user of its own, which may not make folders in /run.
_DISABLE = """
test -z "$image" || docker image inspect "$image" >/dev/null
docker container inspect -f '{{.Config.User}}' "$name" | grep -qxE '(0|root)?(:.*)?' || docker exec --user 0 "$name" sh -eu -c "$open"
docker exec "$name" sh -eu -c "$body" provision "$force" "$drain_s"
docker exec --user 0 "$name" sh -eu -c "$clean"
"""
_ENABLE = """
docker container inspect -f '{{.Config.User}}' "$name" | grep -qxE '(0|root)?(:.*)?' || docker exec --user 0 "$name" sh -eu -c "$open"
docker exec "$name" sh -eu -c "$body" provision "$gpu" "$percentage" "$memory" "$cpus" "$device" "$drain_s" "$ready_s"
test -n "$gpu" || exit 0
boxes=$name
test -z "$worker" || boxes=$(echo "$worker"; docker ps --filter "label=provision.sibling=$worker" --format '{{.Names}}' | sort)
prove() {
    answer=$(docker exec "$1" sh -c "$prove" provision "$client" 2>&1) || true
    echo "$1: $(printf '%s\\n' "$answer" | tail -n 1)"
}
said=$(
    count=0
    for box in $boxes; do
        prove "$box" &
        count=$((count + 1))
        test "$((count % 8))" -ne 0 || wait
    done
    wait
)
printf '%s\\n' "$said"
if printf '%s\\n' "$said" | grep -qvE '^[^:]*: (attached|unproven)'; then
    echo 'the probe client is not attached to the server'
    exit 1
fi
key=$(printf '%s\\n' "$boxes" | xargs docker container inspect -f '{{.Id}}{{.State.StartedAt}}' 2>/dev/null | cksum | tr -d ' \\n')
printf '%s\\n' "$said" | docker exec -i "$name" sh -eu -c "$note" provision "$key"
"""


_OWN = (
    (
        "another mps.enable or mps.disable is under way",
        Diagnosis(
            "somebody else starts or ends MPS on this host right now",
            "wait until that ends, then run the same command again",
        ),
    ),
    (
        "processes are still attached",
        Diagnosis(
            "programs are still attached to MPS", "let them end, or invoke mps.disable --force"
        ),
    ),
    (
        "the control daemon speaks MPS v3",
        Diagnosis(
            "a daemon of MPS v3 is there, which somebody else started",
            "end it with nvidia-cuda-mps-control -q in the container",
        ),
    ),
    (
        "there is no such GPU",
        Diagnosis("the GPU that mps.gpu names is not there", "invoke dev.exec -- nvidia-smi -L"),
    ),
    (
        "there are no such CPUs",
        Diagnosis(
            "the CPUs that mps.cpus names are not there",
            "invoke dev.exec -- grep Cpus_allowed_list /proc/self/status",
        ),
    ),
    (
        "the image has no taskset",
        Diagnosis(
            "mps.cpus needs taskset, which the image has not",
            "add util-linux to worker.apt, or remove mps.cpus",
        ),
    ),
    (
        "the MPS server is not ACTIVE",
        Diagnosis(
            "the MPS server did not become ACTIVE",
            "invoke dev.exec -- sh -c 'cat $CUDA_MPS_LOG_DIRECTORY/control.log'",
        ),
    ),
    (
        r"cuCtxCreate_v2 gives 2\b",
        Diagnosis(
            "no CUDA context fits into mps.memory_limit, or into what the GPU has left",
            "raise mps.memory_limit; where there is none, invoke dev.exec -- nvidia-smi",
        ),
    ),
    (
        r": (failed|outside): .*\n|probe client is not attached",
        Diagnosis("a CUDA program of the container does not attach to MPS", "invoke mps.doctor"),
    ),
    (
        r"(mkdir|chmod|mv|rm|ln): .*(ermission denied|Read-only file system)|of the container may not write to",
        Diagnosis(
            "the container's user may not write where MPS keeps its files",
            "set mps.pipe_dir and mps.log_dir to other folders",
        ),
    ),
    (
        r"mkdir: .*(File exists|Not a directory)",
        Diagnosis(
            "a file is where a folder of MPS should be",
            "set mps.pipe_dir and mps.log_dir to other folders",
        ),
    ),
)
"""What our own steps say when they give up, as patterns: the cause, and what helps."""


@dataclass(frozen=True, kw_only=True)
class MpsDaemon(Resource):
    """A control daemon as planned and, where there is a GPU, a server that is ACTIVE and proven by a client of each container.

    `container` is the daemon's; `worker` the first worker container where that is another one (its
    siblings count as well). `cpus` pins the daemon (a list as taskset takes it), `gpu` is the one
    it serves (UUID or index; empty = all), `memory_limit` what a client may allocate of it (`4G`,
    `512M`). A changed plan ends the daemon once its clients have left.

    The server has `ready_s` seconds to be ACTIVE.

    With `present=False`: no daemon, no server, and what enabling made is gone. Clients have
    `drain_s` seconds to leave, then they are named; with `force` they are terminated by MPS itself,
    since a client that is killed with work in flight is undefined for all (NVIDIA MPS guide). With
    `alone`, a container that joins another one's namespaces is left alone. With `image`, the one
    that takes the container's place, nothing is ended before that is on the host.
    """

    container: str
    worker: str = ""
    present: bool = True
    thread_percentage: int = 100
    memory_limit: str | None = None
    cpus: str | None = None
    gpu: str | None = None
    force: bool = False
    alone: bool = False
    image: str = ""
    drain_s: int = DRAIN_S
    ready_s: int = 30
    timeout_s: float = 240.0

    def probe(self) -> Script:
        """Ask the daemon."""
        return status_script(
            self.container, worker=self.worker, alone=self.alone, device=self.gpu or ""
        )

    def read(self, text: str) -> State | None:
        """`{"daemon", "server", "thread_percentage", "memory_limit", "cpus", "gpu", "proof"}`; None without a daemon.

        `{"daemon": False, "left"}` where none answers and processes of one are still there;
        `"unproven"` says why the proof is none.
        """
        status = read_status(text)
        if not status.daemon:
            return {"daemon": False, "left": status.left} if status.left else None
        return {
            "daemon": True,
            "server": status.server_state,
            "thread_percentage": status.thread_percentage,
            "memory_limit": status.memory_limit,
            "cpus": (self.cpus and status.cpu_list) or status.cpus,
            "gpu": self._gpu(status),
            "proof": "current" if status.proof else "none",
            **_unproven(status),
        }

    def _gpu(self, status: MpsStatus) -> str:
        """The GPU in the terms of the settings."""
        indices = {uuid: index for index, uuid in status.gpu_indices}
        return indices.get(status.gpu, status.gpu)

    def remark(self, actual: State | None) -> str:
        """That no client was there to prove it."""
        why = (actual or {}).get("unproven")
        return f"not proven that programs attach: {why}" if why else ""

    def desired(self, facts: Facts) -> State | None:
        """A daemon as planned, an ACTIVE server, and a client that was tried on it; only a daemon where there is no GPU."""
        if not self.present:
            return None
        wanted: State = {
            "daemon": True,
            "thread_percentage": float(self.thread_percentage),
            "memory_limit": self.memory_limit,
            "cpus": self.cpus or "all",
            "gpu": self.gpu or "",
        }
        return {**wanted, "server": "ACTIVE", "proof": "current"} if _has_gpu(facts) else wanted

    def ensure(self, facts: Facts) -> Script | None:
        """Directories, daemon, defaults, server, a client of each container; or drain, quit, clean up."""
        if not self.present:
            return script(
                _DISABLE,
                name=self.container,
                image=self.image,
                open=inside.OPEN,
                body=inside.DISABLE,
                clean=inside.CLEAN,
                force="yes" if self.force else "",
                drain_s=self.drain_s,
            )
        plan: dict[str, Argument] = {
            "gpu": "yes" if _has_gpu(facts) else "",
            "percentage": self.thread_percentage,
            "memory": self.memory_limit or "",
            "cpus": self.cpus or "",
            "device": self.gpu or "",
            "drain_s": self.drain_s,
            "ready_s": self.ready_s,
        }
        return script(
            _ENABLE,
            argv=None,
            name=self.container,
            worker=self.worker,
            open=inside.OPEN,
            body=inside.ENABLE,
            prove=inside.PROVE,
            client=CLIENT,
            note=inside.NOTE,
        ).with_bindings(plan)

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """The texts of the control tool, of Docker, and of our own steps."""
        if "No such container" in output or "is not running" in output:
            return Diagnosis("the worker container is not running", "invoke dev.up")
        if "No such image" in output:
            return Diagnosis("the worker image is not on the host", "invoke dev.up")
        if "not found" in output and "nvidia-cuda-mps-control" in output:
            return Diagnosis(
                "the container has no MPS binaries on its PATH",
                "invoke dev.up   (mounts the driver folder)",
            )
        if re.search(r"nvidia-cuda-mps-[a-z]+['\"]?: [Pp]ermission denied", output):
            return Diagnosis(
                "the MPS binaries are not executable: the driver folder is mounted noexec",
                "invoke vm.provision, then invoke dev.up",
            )
        return next((meaning for pattern, meaning in _OWN if re.search(pattern, output)), None)


@dataclass(frozen=True, kw_only=True)
class MpsAsChosen(MpsDaemon):
    """MPS on where it was enabled on this host, whatever it is where it was not.

    A host remembers the choice by the boot fragment `fragment`; a container that was recreated gets
    its daemon back.
    """

    fragment: str

    def probe(self) -> Script:
        """Ask the daemon, where it is wanted."""
        return status_script(
            self.container, worker=self.worker, if_enabled=self.fragment, device=self.gpu or ""
        )

    def read(self, text: str) -> State | None:
        """`{"chosen", "as_chosen"}`."""
        chosen = fields(text).get("enabled") != "no"
        status = read_status(text)
        well = status.daemon and (
            not status.server_state or (status.server_state == "ACTIVE" and bool(status.proof))
        )
        return {
            "chosen": "on" if chosen else "off",
            "as_chosen": not chosen or well,
            **_unproven(status),
        }

    def desired(self, facts: Facts) -> State | None:  # noqa: ARG002
        """`{"as_chosen": True}`."""
        return {"as_chosen": True}


def _unproven(status: MpsStatus) -> State:
    """`{"unproven"}`: what was said where a client could not be tried; empty where all are attached, or none was tried yet."""
    return (
        {"unproven": "; ".join(f"{box}: {said}" for box, said in status.proof)}
        if status.proof and not status.attached
        else {}
    )


def _has_gpu(facts: Facts) -> bool:
    return bool(facts.gpus or facts.driver_loaded)
