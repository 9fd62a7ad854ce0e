"""One lab host: start, stop, reboot, and commands run inside it without SSH."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from lab.base_image import BaseImage
from lab.image import Gpu, write_image
from lab.processes import POLL_S, alive, child, remove_cgroups, start_time, wait_until
from lab.programs import PATH, LabError, engine_folder, find_programs
from lab.state import USER, Identity, State
from provision.core.model import Host

DEFAULT_FOLDER = Path("/var/tmp/provision-lab")
BOOT_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0


Done: TypeAlias = subprocess.CompletedProcess[str]


_FORGET = """
docker ps --all --quiet | xargs -r docker rm --force --volumes >/dev/null
docker images --quiet provision/worker | xargs -r docker rmi --force >/dev/null
docker volume prune --all --force >/dev/null 2>&1 || docker volume prune --force >/dev/null
if findmnt -M /var/lib/nvidia >/dev/null; then umount /var/lib/nvidia; fi
rm -rf /var/lib/provision /var/lib/nvidia
mkdir /var/lib/nvidia
"""


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
        write_image(
            self.state,
            self.gpu,
            programs,
            port=identity.port,
            cgroup=self._cgroup,
            user_data=self.user_data,
        )
        self._spawn()
        self._wait_ready(identity)

    def stop(self) -> None:
        """End everything that runs in it, at once, as a power cut does. What lies on its disk stays."""
        supervisor = self._supervisor()
        if supervisor is not None:
            unshare = child(supervisor)
            pids = [pid for pid in (supervisor, unshare, child(unshare)) if pid is not None]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda: not any(alive(pid) for pid in pids), _STOP_TIMEOUT_S, "the lab does not end"
            )
        if self._started is not None:
            self._started.wait(_STOP_TIMEOUT_S)
            self._started = None
        (self.folder / "pid").unlink(missing_ok=True)
        remove_cgroups(self._cgroup)

    def reboot(self) -> None:
        """Lose what a reboot loses, keep the disk, boot again with the same keys and port."""
        self.stop()
        self.start()

    def wait_for_boot(self, *, after: str) -> None:
        """Wait until another boot than the one with the boot id `after` is ready."""
        wait_until(
            lambda: self.boot_id() not in {"", after}, BOOT_TIMEOUT_S, "the lab did not boot again"
        )

    def boot_id(self) -> str:
        """The boot id of a lab that is ready; empty while it is not."""
        init = self.init_pid()
        if (
            init is None
            or not (run := Path(f"/proc/{init}/root/run/lab")).joinpath("ready").exists()
        ):
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

        wait_until(settled, timeout_s, f"{unit} is still activating")
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
        done = subprocess.run(
            self._enter(words), input=stdin, capture_output=True, check=False, timeout=timeout_s
        )
        result = subprocess.CompletedProcess(
            words,
            done.returncode,
            done.stdout.decode("utf-8", "replace"),
            done.stderr.decode("utf-8", "replace"),
        )
        if check and result.returncode != 0:
            raise LabError(
                f"{' '.join(words)} failed with status {result.returncode}",
                where="lab",
                why=result.stdout + result.stderr,
            )
        return result

    def load(self, image: BaseImage) -> None:
        """Make the base image known to the lab's Docker Engine, unless it is."""
        label = "lab.digest"
        known = self.exec_inside(
            "docker",
            "image",
            "inspect",
            "-f",
            f'{{{{index .Config.Labels "{label}"}}}}',
            image.reference,
            check=False,
        )
        if known.stdout.strip() == image.digest:
            return
        changes = [
            f"ENV PATH={PATH}",
            f"LABEL {label}={image.digest}",
            'ENTRYPOINT ["/opt/apache/beam/boot"]',
        ]
        words = [
            "docker",
            "import",
            *(word for change in changes for word in ("--change", change)),
            "-",
            image.reference,
        ]
        with image.archive.open("rb") as archive:
            done = subprocess.run(
                self._enter(words),
                stdin=archive,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
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
        environment = [
            "env",
            "-i",
            f"PATH={PATH}",
            "HOME=/root",
            "LANG=C.UTF-8",
            f"TERM={os.environ.get('TERM', 'dumb')}",
        ]
        return ["nsenter", "--target", str(self._need_init()), *namespaces, *environment, *words]

    # --- processes ---

    @property
    def _cgroup(self) -> str:
        return "/provision-lab-" + "".join(
            char if char.isalnum() else "-" for char in str(self.folder.resolve())
        )

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
        (self.folder / "pid").write_text(f"{self._started.pid} {start_time(self._started.pid)}")

    def _wait_ready(self, identity: Identity) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while True:
            if self._started is not None and self._started.poll() is not None:
                self._fail("the lab ended while it booted")
            if self.boot_id():
                return
            if time.monotonic() > deadline:
                self._fail(
                    f"the lab is not ready after {BOOT_TIMEOUT_S:g} s (port {identity.port})"
                )
            time.sleep(POLL_S)

    def _fail(self, what: str) -> None:
        said = self.state.console.read_text(errors="replace").rstrip().splitlines()[-15:]
        self.stop()
        raise LabError(
            what, where=str(self.folder), why="\n".join(said), fix=f"cat {self.state.console}"
        )

    def init_pid(self) -> int | None:
        """The lab's first process, as this machine numbers it; None when the lab does not run."""
        return child(child(self._supervisor()))

    def _need_init(self) -> int:
        if (pid := self.init_pid()) is None:
            raise LabError("the lab does not run", where=str(self.folder), fix="lab/lab up")
        return pid

    def _supervisor(self) -> int | None:
        try:
            pid, started = (self.folder / "pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if alive(int(pid)) and start_time(int(pid)) == started else None
