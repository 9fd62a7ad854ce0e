"""The worker container: one long-lived container in which programs are run at will. Pure.

Sources: Google, "Run GPU workloads on Container-Optimized OS" (driver volumes and device nodes
instead of `--privileged`), Docker's CLI reference.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Argument, RemotePath, Script, fields, join, quote, script
from provision.core.worker_environment import threads_per_worker, worker_environment
from provision.resources.driver import DRIVER_DIR
from provision.resources.file import diagnose_full_disk

HERE = Path(__file__).parent
RECORD = ("core/loaded_driver.sh", "resources/container/record.sh")
PRINT_STATE = (*RECORD, "resources/container/print_state.sh")
CREATE = (*RECORD, "resources/container/create.sh")
"""The files of shell functions that probe a container, and that make one run."""
WORKSPACE = "/workspace"
"""The folder of the container that holds the project's files."""
NOFILE = "16384:16384"
"""Limit of open files in the container (soft:hard).

NVIDIA recommends at least 16384 for MPS; more needs CAP_SYS_RESOURCE.
"""


@dataclass(frozen=True, kw_only=True)
class Container(Resource):
    """The worker container: driver volumes, device nodes, shared memory, MPS folders.

    Its main process idles (`sleep infinity` under `--init`), so that programs can be run in it at
    any time. Its restart policy is `no`: a container that Docker restarts before its device nodes
    exist stays dead, so the boot script starts it instead. With `joins` it lives in the PID and
    IPC namespaces of the container of that name, which must have `shares`. Without them, the MPS
    daemon in that container lists this one's programs as PID 0 and command `?` (measured:
    docs/facts.md).
    """

    container: str
    image: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    volumes: tuple[str, ...] = ()
    shm_size: str = "1g"
    privileged: bool = False
    gpu: bool = True
    processes: int | None = None
    driver_dir: str = DRIVER_DIR.path
    joins: str = ""
    shares: bool = False
    timeout_s: float = 180.0

    @property
    def work_volume(self) -> str:
        """The name of the Docker volume at /workspace; unlike a folder of /var it is executable."""
        return f"{self.container}-workspace"

    @property
    def driver_folder(self) -> Argument:
        """The driver's folder on the host; empty without a GPU."""
        return RemotePath(self.driver_dir) if self.gpu else ""

    # --- what `docker run` is given ---------------------------------------------------------------

    def environment(self, facts: Facts) -> dict[str, str]:
        """The variables of every process in the container; those of `env` come last and win."""
        processes = self.processes or facts.cpus or 1
        return {**worker_environment(threads_per_worker(facts.cpus, processes)), **self.env}

    def run_options(self, facts: Facts) -> list[Argument]:
        """The options of `docker run`; `ensure` adds the device nodes that the host has."""
        return [
            *self._process_options(),
            *("--entrypoint", "sleep"),
            *self._limit_options(),
            *("--workdir", WORKSPACE),
            *("--volume", f"{self.work_volume}:{WORKSPACE}"),
            *self._content_options(facts),
        ]

    def editor_options(self, facts: Facts, *, gpu_count: int) -> list[Argument]:
        """The options of `docker run` for an editor that makes the container itself.

        The editor sets entry point, working folder and the volume at /workspace. It cannot look for
        device nodes on the host, so those of `gpu_count` GPUs are named.
        """
        nodes = [*(f"nvidia{index}" for index in range(gpu_count)), "nvidiactl", "nvidia-uvm"]
        options = [*self._process_options(), *self._limit_options(), *self._content_options(facts)]
        if self.adds_devices:
            options += [word for node in nodes for word in ("--device", f"/dev/{node}")]
        return options

    @property
    def adds_devices(self) -> bool:
        """True when the device nodes are passed one by one; `--privileged` passes all of them."""
        return self.gpu and not self.privileged

    def _process_options(self) -> list[Argument]:
        """A joined PID namespace already has an init process: that of the other container."""
        init = [] if self.joins else ["--init"]
        return [*init, "--restart", "no", "--network", "host"]

    def _limit_options(self) -> list[Argument]:
        return [*self._namespace_options(), "--ulimit", f"nofile={NOFILE}"]

    def _namespace_options(self) -> list[Argument]:
        if self.joins:
            return ["--pid", f"container:{self.joins}", "--ipc", f"container:{self.joins}"]
        return [*(["--ipc", "shareable"] if self.shares else []), "--shm-size", self.shm_size]

    def _content_options(self, facts: Facts) -> list[Argument]:
        options = self._volume_options()
        for name, value in sorted(self.environment(facts).items()):
            options += ["--env", f"{name}={value}"]
        return [*options, "--privileged"] if self.privileged else options

    def _volume_options(self) -> list[Argument]:
        volumes: list[Argument] = []
        if self.gpu:
            driver = RemotePath(self.driver_dir)
            volumes += [join(driver / "lib64", ":/usr/local/nvidia/lib64:ro")]
            volumes += [join(driver / "bin", ":/usr/local/nvidia/bin:ro")]
        for volume in self.volumes:
            source, _, target = volume.partition(":")
            is_path = source.startswith("/")
            volumes += [join(RemotePath(source), f":{target}") if is_path else volume]
        return [word for volume in volumes for word in ("--volume", volume)]

    def spec(self, facts: Facts) -> str:
        """A digest of all that the container is started with; a label of the container keeps it."""
        words = [self.image, "devices" if self.gpu else "", *self.run_options(facts)]
        text = " ".join(quote(word) for word in words)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    # --- the resource -----------------------------------------------------------------------------

    def probe(self) -> Script:
        """Print the container's record, and what a container would be made from now."""
        return script(HERE / "probe.sh", uses=PRINT_STATE).with_bindings(self.probe_bindings)

    @property
    def probe_bindings(self) -> dict[str, Argument]:
        """The variables that a probe of this container or of its siblings reads."""
        return {
            "name": self.container,
            "image": self.image,
            "folder": self.driver_folder,
            "joins": self.joins,
        }

    def read(self, text: str) -> State | None:
        """`{"running", "spec", "image", "driver"}`; None without a container.

        `image` and `driver` are `current` or `stale`. With `joins`, `joined` is there as well:
        `stale` when the container of that name has been replaced.
        """
        if not text.strip():
            return None
        record, _, rest = text.partition("\n")
        state = read_record(record, fields(rest))
        if not self.joins:
            del state["joined"]
        return state

    def desired(self, facts: Facts) -> State:
        """Running, as specified, from the current image, with the current driver."""
        joined = {"joined": "current"} if self.joins else {}
        current = {"image": "current", "driver": "current", **joined}
        return {"running": True, "spec": self.spec(facts), **current}

    def ensure(self, facts: Facts) -> Script | None:
        """Start the container, or recreate it where its specification, image or driver is stale."""
        options = self.run_options(facts)
        body = script(HERE / "ensure.sh", uses=CREATE, argv=options)
        return body.with_bindings(self.ensure_bindings(facts))

    def ensure_bindings(self, facts: Facts) -> dict[str, Argument]:
        """The variables that a script which makes this container or its siblings reads."""
        devices = "yes" if self.adds_devices else ""
        return {**self.probe_bindings, "spec": self.spec(facts), "devices": devices}

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """Another container of that name, no image, no `sleep` in it, no devices, full disk."""
        if "was not made by provision" in output:
            return Diagnosis(
                f"a container named {self.container} exists that provision did not make",
                "set worker.name to another name",
            )
        if "error gathering device information" in output:
            return Diagnosis("the driver's device nodes are gone", "invoke vm.provision")
        if "No such image" in output:
            return Diagnosis("the worker image is not on the host", "invoke dev.up")
        if re.search(r'exec: "sleep"|"sleep": executable file not found', output):
            return Diagnosis(
                "the image has no `sleep` to stay alive with",
                "base worker.image on a distribution with coreutils or busybox",
            )
        return diagnose_full_disk(output)


def read_record(line: str, now: Mapping[str, str]) -> dict[str, str | bool]:
    """The state of one container, from its record and from what it would be made from now."""
    running, image, spec, driver, *joined = line.split("|")
    current = {True: "current", False: "stale"}
    return {
        "running": running == "true",
        "spec": spec,
        "image": current[image == now.get("image", "").strip()],
        "driver": current[driver == now.get("driver", "").strip()],
        "joined": current["".join(joined) == now.get("owner", "").strip()],
    }
