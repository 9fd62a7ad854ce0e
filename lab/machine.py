"""One lab host: start, stop, reboot, and commands run inside it without SSH."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from lab.base_image import PATH, BaseImage
from lab.image import Gpu, Programs, write_image
from lab.state import USER, Identity, State
from provision.errors import ProvisionError
from provision.model import Host

DEFAULT_FOLDER = Path("/var/tmp/provision-lab")
BOOT_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05


Done: TypeAlias = subprocess.CompletedProcess[str]


_FORGET = """
docker ps --all --quiet | xargs -r docker rm --force --volumes >/dev/null
docker images --quiet provision/worker | xargs -r docker rmi --force >/dev/null
docker volume prune --all --force >/dev/null 2>&1 || docker volume prune --force >/dev/null
if findmnt -M /var/lib/nvidia >/dev/null; then umount /var/lib/nvidia; fi
rm -rf /var/lib/provision /var/lib/nvidia
mkdir /var/lib/nvidia
"""


class LabError(ProvisionError):
    """The lab cannot be had, or a command in it failed."""


@dataclass
class Lab:
    """A lab in `folder`. Several may run side by side, each in a folder of its own."""

    folder: Path = DEFAULT_FOLDER
    gpu: Gpu = field(default_factory=Gpu)
    authorized_key: str | None = None
    user_data: str = ""
    engine: Path | None = field(default_factory=lambda: engine_folder(os.environ))
    cloud_init: Path | None = None
    """cloud-init, unpacked; without it user-data is applied by a small program of the lab's own."""
    _started: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def state(self) -> State:
        """Its files."""
        return State(self.folder)

    @property
    def root(self) -> Path:
        """Its / as seen from outside, while it runs."""
        return Path(f"/proc/{self._need_init()}/root")

    @property
    def host(self) -> Host:
        """The lab as a host that scripts are sent to. Raises `LabError` before the first start."""
        identity = self.state.identity()
        if identity is None:
            raise LabError("the lab was never started", where=str(self.folder), fix="lab/lab up")
        return Host(
            name="lab",
            address="127.0.0.1",
            port=identity.port,
            user=USER,
            identity=identity.identity,
            host_key=identity.host_key,
            become="sudo",
        )

    # --- life ---

    def start(self) -> None:
        """Boot the lab unless it runs; return when sshd and the Docker Engine answer. Raises `LabError`."""
        if self.boot_id():
            return
        self.stop()  # what a lab that was cut off has left
        programs = find_programs(self.engine, self.cloud_init)
        identity = self.state.prepare(self.authorized_key, keygen=programs.keygen)
        write_image(self.state, self.gpu, programs, port=identity.port, cgroup=self._cgroup, user_data=self.user_data)
        self._spawn()
        self._wait_ready(identity)

    def stop(self) -> None:
        """End everything that runs in it, at once, as a power cut does. What lies on its disk stays."""
        supervisor = self._supervisor()
        if supervisor is not None:
            unshare = _child(supervisor)
            pids = [pid for pid in (supervisor, unshare, _child(unshare)) if pid is not None]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _wait_until(lambda: not any(_alive(pid) for pid in pids), _STOP_TIMEOUT_S, "the lab does not end")
        if self._started is not None:
            self._started.wait(_STOP_TIMEOUT_S)
            self._started = None
        (self.folder / "pid").unlink(missing_ok=True)
        _remove_cgroups(self._cgroup)

    def reboot(self) -> None:
        """Lose what a reboot loses, keep the disk, boot again with the same keys and port."""
        self.stop()
        self.start()

    def wait_for_boot(self, *, after: str) -> None:
        """Wait until another boot than the one with the boot id `after` is ready."""
        _wait_until(lambda: self.boot_id() not in {"", after}, BOOT_TIMEOUT_S, "the lab did not boot again")

    def boot_id(self) -> str:
        """The boot id of a lab that is ready; empty while it is not."""
        init = self.init_pid()
        if init is None or not (run := Path(f"/proc/{init}/root/run/lab")).joinpath("ready").exists():
            return ""
        try:
            return (run / "boot_id").read_text().strip()
        except OSError:
            return ""

    def wait_for_unit(self, unit: str, timeout_s: float = 120.0) -> str:
        """How a unit that was started in the background ended: its ActiveState once that is not `activating`."""
        state = "activating"

        def settled() -> bool:
            nonlocal state
            state = self.exec_inside("systemctl", "is-active", unit, check=False).stdout.strip()
            return state != "activating"

        _wait_until(settled, timeout_s, f"{unit} is still activating")
        return state

    def remove(self) -> None:
        """Stop it and remove its folder: no process, no mount, no file stays."""
        self.stop()
        if self.folder.exists():
            self.state.remove()

    # --- inside ---

    def exec_inside(
        self, *words: str, stdin: bytes = b"", check: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the lab as root, not through SSH. Raises `LabError` when `check` and it fails."""
        done = subprocess.run(self._enter(words), input=stdin, capture_output=True, check=False, timeout=timeout_s)
        result = subprocess.CompletedProcess(
            words, done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )
        if check and result.returncode != 0:
            raise LabError(f"{' '.join(words)} failed with status {result.returncode}", where="lab", why=result.stdout + result.stderr)
        return result

    def load(self, image: BaseImage) -> None:
        """Make the base image known to the lab's Docker Engine, unless it is."""
        label = "lab.digest"
        known = self.exec_inside(
            "docker", "image", "inspect", "-f", f'{{{{index .Config.Labels "{label}"}}}}', image.reference, check=False
        )
        if known.stdout.strip() == image.digest:
            return
        changes = [f"ENV PATH={PATH}", f"LABEL {label}={image.digest}", 'ENTRYPOINT ["/opt/apache/beam/boot"]']
        words = ["docker", "import", *(word for change in changes for word in ("--change", change)), "-", image.reference]
        with image.archive.open("rb") as archive:
            done = subprocess.run(self._enter(words), stdin=archive, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise LabError("the base image could not be loaded", where="lab", why=done.stderr)

    def forget(self) -> None:
        """Boot with a disk on which nothing of a driver or of the toolkit is left; the base image and the keys stay."""
        self.exec_inside("sh", "-c", _FORGET)
        self.reboot()

    def shell(self) -> int:
        """An interactive shell of root in the lab."""
        return subprocess.run(self._enter(["bash", "-l"]), check=False).returncode

    def _enter(self, words: Sequence[str]) -> list[str]:
        namespaces = ["--mount", "--uts", "--ipc", "--pid", "--root", "--wd=/"]
        environment = ["env", "-i", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8", f"TERM={os.environ.get('TERM', 'dumb')}"]
        return ["nsenter", "--target", str(self._need_init()), *namespaces, *environment, *words]

    # --- processes ---

    @property
    def _cgroup(self) -> str:
        return "/provision-lab-" + "".join(char if char.isalnum() else "-" for char in str(self.folder.resolve()))

    def _spawn(self) -> None:
        with self.state.console.open("wb") as console:
            self._started = subprocess.Popen(
                ["sh", str(self.state.local / "supervise"), str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={"PATH": PATH},
            )
        (self.folder / "pid").write_text(f"{self._started.pid} {_start_time(self._started.pid)}")

    def _wait_ready(self, identity: Identity) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while True:
            if self._started is not None and self._started.poll() is not None:
                self._fail("the lab ended while it booted")
            if self.boot_id():
                return
            if time.monotonic() > deadline:
                self._fail(f"the lab is not ready after {BOOT_TIMEOUT_S:g} s (port {identity.port})")
            time.sleep(_POLL_S)

    def _fail(self, what: str) -> None:
        said = self.state.console.read_text(errors="replace").rstrip().splitlines()[-15:]
        self.stop()
        raise LabError(what, where=str(self.folder), why="\n".join(said), fix=f"cat {self.state.console}")

    def init_pid(self) -> int | None:
        """The lab's first process, as this machine numbers it; None when the lab does not run."""
        return _child(_child(self._supervisor()))

    def _need_init(self) -> int:
        if (pid := self.init_pid()) is None:
            raise LabError("the lab does not run", where=str(self.folder), fix="lab/lab up")
        return pid

    def _supervisor(self) -> int | None:
        try:
            pid, started = (self.folder / "pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if _alive(int(pid)) and _start_time(int(pid)) == started else None


def engine_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder of an unpacked Docker Engine and sshd that PROVISION_ENGINE names, for machines that can install nothing."""
    folder = environment.get("PROVISION_ENGINE")
    return Path(folder).resolve() if folder else None


NEEDED = (
    *("dockerd", "docker", "runc", "containerd", "sshd", "ssh-keygen", "unshare", "nsenter", "pivot_root", "findmnt", "setpriv", "busybox"),
)


def find_programs(engine: Path | None, cloud_init: Path | None = None) -> Programs:
    """What the lab is made of. Raises `LabError` naming everything that is missing."""
    if os.geteuid() != 0:
        raise LabError("the lab needs root", fix="sudo make lab")
    path = PATH if engine is None else f"{engine}/usr/sbin:{engine}/usr/bin:{engine}/sbin:{engine}/bin:{PATH}"
    found = {name: Path(where) for name in NEEDED if (where := shutil.which(name, path=path)) is not None}
    python = shutil.which("python3", path="/usr/bin:/bin")
    init = next(filter(None, (shutil.which(name, path=path) for name in ("docker-init", "tini", "tini-static"))), None)
    missing = [name for name in NEEDED if name not in found] + ["/usr/bin/python3"] * (python is None) + ["tini"] * (init is None)
    if python is None or init is None or missing:
        fix = ".ci/packages   (installs them from Debian's packages), or set PROVISION_ENGINE"
        raise LabError("programs of the lab are missing", why=", ".join(missing), fix=fix)
    return Programs(
        python=Path(python).resolve(),
        sshd=found["sshd"],
        init=Path(init),
        setpriv=found["setpriv"],
        keygen=found["ssh-keygen"],
        busybox=found["busybox"],
        engine=engine,
        cloud_init=cloud_init,
    )


def _child(pid: int | None) -> int | None:
    """The only child of a process, if it has one."""
    if pid is None:
        return None
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if int(fields[1]) == pid:
                    return int(entry.name)
    return None


def _alive(pid: int) -> bool:
    """True for a process that is there and not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0] != "Z"
    except OSError:
        return False


def _start_time(pid: int) -> str:
    """When the process started, which tells it from a later one of the same number."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]


def _wait_until(true: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise LabError(what)
        time.sleep(_POLL_S)


def _remove_cgroups(name: str) -> None:
    """What Docker made below its cgroup, in each hierarchy of version 1 or in the one of version 2."""
    top = Path("/sys/fs/cgroup")
    for hierarchy in (top, *(entry for entry in top.glob("*") if entry.is_dir())):
        _remove_tree(hierarchy / name.lstrip("/"))


def _remove_tree(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
