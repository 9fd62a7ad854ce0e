"""The MPS control daemon as a resource: started and proven, or drained and gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Script, fields, script, shell_text
from provision.mps.daemon.failures import diagnose_failure
from provision.mps.daemon.probe_client import probe_client_program, prove_text
from provision.mps.status.status import DAEMON_FUNCTIONS, MpsStatus, read_status, status_script
from provision.resources.container import WORKER_FUNCTIONS

HERE = Path(__file__).parent
DRAIN_S = 20
"""Seconds that clients have to end before a daemon is restarted or stopped."""

LOCK_FUNCTIONS = (*DAEMON_FUNCTIONS, "mps/daemon/lock.sh")
STOP_FUNCTIONS = (*LOCK_FUNCTIONS, "mps/daemon/stop.sh")


def alive_text() -> str:
    """Shell for the daemon's container that ends with 0 where a daemon runs. It is not asked."""
    return shell_text(HERE / "alive.sh", "mps/environment.sh", "mps/processes.sh")


@dataclass(frozen=True, kw_only=True)
class MpsDaemon(Resource):
    """A control daemon as planned and, with a GPU, an ACTIVE server proven by a client.

    `container` is the daemon's; `worker` is the first worker container where that is another one. A
    client of the worker and of each sibling is tried. A changed plan restarts the daemon once its
    clients have ended.

    With `present=False` there is no daemon and no server, and what enabling created is removed.
    """

    container: str
    worker: str = ""
    present: bool = True
    thread_percentage: int = 100
    memory_limit: str | None = None
    """What a client may allocate of the GPU's memory (`4G`, `512M`)."""
    cpus: str | None = None
    """CPUs that the daemon is pinned to, a list as taskset takes it."""
    gpu: str | None = None
    """UUID or index of the GPU that it serves; empty for all."""
    force: bool = False
    """Let MPS terminate the clients instead of waiting for them. A client that is killed with work
    in flight is undefined behaviour for all clients (NVIDIA MPS guide)."""
    skip_joined: bool = False
    """Leave out a container that joins another one's namespaces."""
    image: str = ""
    """Stop nothing before this image is on the host: that of the container that follows."""
    drain_s: int = DRAIN_S
    ready_s: int = 30
    """Seconds that the server has to be ACTIVE."""
    timeout_s: float = 240.0

    def probe(self) -> Script:
        """Ask the daemon."""
        return status_script(
            self.container, worker=self.worker, skip_joined=self.skip_joined, device=self.gpu or ""
        )

    def read(self, text: str) -> State | None:
        """The daemon's properties; None without a daemon. Raises `ProbeUnreadable`.

        `{"daemon": False, "left"}` where none answers and processes of one still live;
        `"unproven"` is why no client could be tried.
        """
        status = read_status(text)
        if not status.daemon:
            return (
                {"daemon": False, "left": status.unresponsive_pids}
                if status.unresponsive_pids
                else None
            )
        return {
            "daemon": True,
            "server": status.server_state,
            "thread_percentage": status.thread_percentage,
            "memory_limit": status.memory_limit,
            "cpus": (self.cpus and status.cpu_list) or status.cpus,
            "gpu": _gpu_in_settings_terms(status),
            "proof": "current" if status.proof else "none",
            **_unproven(status),
        }

    def remark(self, actual: State | None) -> str:
        """Why no client could be tried; empty where one was."""
        why = (actual or {}).get("unproven")
        return f"not proven that programs attach: {why}" if why else ""

    def desired(self, facts: Facts) -> State | None:
        """The planned daemon; with a GPU also an ACTIVE server and a client tried on it."""
        if not self.present:
            return None
        plan: State = {
            "daemon": True,
            "thread_percentage": float(self.thread_percentage),
            "memory_limit": self.memory_limit,
            "cpus": self.cpus or "all",
            "gpu": self.gpu or "",
        }
        return {**plan, "server": "ACTIVE", "proof": "current"} if _has_gpu(facts) else plan

    def ensure(self, facts: Facts) -> Script | None:
        """Start daemon and server and try a client of each container; or drain, quit, clean up."""
        return self._enable(facts) if self.present else self._disable()

    def _enable(self, facts: Facts) -> Script:
        return script(
            HERE / "enable.sh",
            uses=[*WORKER_FUNCTIONS, "mps/daemon/container_user.sh"],
            name=self.container,
            worker=self.worker,
            has_gpu="yes" if _has_gpu(facts) else "",
            percentage=self.thread_percentage,
            memory=self.memory_limit or "",
            cpus=self.cpus or "",
            device=self.gpu or "",
            drain_s=self.drain_s,
            ready_s=self.ready_s,
            open_directories=shell_text(HERE / "open_directories.sh", *LOCK_FUNCTIONS),
            body=shell_text(HERE / "enable_in_container.sh", *STOP_FUNCTIONS),
            prove=prove_text(),
            program=probe_client_program(),
            record_proof=shell_text(HERE / "record_proof.sh", *LOCK_FUNCTIONS),
        )

    def _disable(self) -> Script:
        return script(
            HERE / "disable.sh",
            uses=["mps/daemon/container_user.sh"],
            name=self.container,
            image=self.image,
            force="yes" if self.force else "",
            drain_s=self.drain_s,
            open_directories=shell_text(HERE / "open_directories.sh", *LOCK_FUNCTIONS),
            body=shell_text(HERE / "disable_in_container.sh", *STOP_FUNCTIONS),
            remove_created=shell_text(HERE / "remove_created.sh", *LOCK_FUNCTIONS),
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """The cause by the texts of the control tool, of Docker and of the scripts."""
        return diagnose_failure(output)


@dataclass(frozen=True, kw_only=True)
class MpsAsChosen(MpsDaemon):
    """The daemon of a host on which MPS was enabled; nothing on a host on which it was not.

    The host remembers the choice by the boot fragment `fragment`. A container that was recreated
    gets its daemon back.
    """

    fragment: str

    def probe(self) -> Script:
        """Ask the daemon, where the fragment is there."""
        return status_script(
            self.container, worker=self.worker, if_enabled=self.fragment, device=self.gpu or ""
        )

    def read(self, text: str) -> State | None:
        """`{"chosen", "as_chosen"}`. Raises `ProbeUnreadable`."""
        chosen = fields(text).get("enabled") != "no"
        status = read_status(text)
        serves = not status.server_state or (status.server_state == "ACTIVE" and bool(status.proof))
        return {
            "chosen": "on" if chosen else "off",
            "as_chosen": not chosen or (status.daemon and serves),
            **_unproven(status),
        }

    def desired(self, facts: Facts) -> State | None:  # noqa: ARG002
        """`{"as_chosen": True}`."""
        return {"as_chosen": True}


def _gpu_in_settings_terms(status: MpsStatus) -> str:
    """The daemon's GPU: its index where the settings choose by index, else its UUID."""
    indices = {uuid: index for index, uuid in status.gpu_indices}
    return indices.get(status.gpu, status.gpu)


def _unproven(status: MpsStatus) -> State:
    """`{"unproven"}`, what the probe clients printed; empty where all attached or none ran."""
    if status.attached or not status.proof:
        return {}
    return {"unproven": "; ".join(f"{container}: {answer}" for container, answer in status.proof)}


def _has_gpu(facts: Facts) -> bool:
    return bool(facts.gpus or facts.driver_loaded)
