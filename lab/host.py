"""A lab host: start, stop, reboot, and commands that run in it without SSH."""

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
from lab.processes import POLL_S, is_alive, only_child, remove_cgroups, wait_until
from lab.programs import PATH, LabError, engine_folder, find_programs
from lab.state import USER, Identity, State
from provision.core.model import Host
from provision.testing.process_start import start_ticks

DEFAULT_FOLDER = Path("/var/tmp/provision-lab")
BOOT_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0


CommandResult: TypeAlias = subprocess.CompletedProcess[str]


_RESET_DISK = """
docker ps --all --quiet | xargs -r docker rm --force --volumes >/dev/null
docker images --quiet provision/worker | xargs -r docker rmi --force >/dev/null
docker volume prune --all --force >/dev/null 2>&1 || docker volume prune --force >/dev/null
if findmnt -M /var/lib/nvidia >/dev/null; then umount /var/lib/nvidia; fi
rm -rf /var/lib/provision /var/lib/nvidia
mkdir /var/lib/nvidia
"""


@dataclass
class Lab:
    """A lab in `folder`. Several labs run side by side, each in its own folder."""

    folder: Path = DEFAULT_FOLDER
    gpu: Gpu = field(default_factory=Gpu)
    authorized_key: str | None = None
    user_data: str = ""
    engine: Path | None = field(default_factory=lambda: engine_folder(os.environ))
    cloud_init: Path | None = None
    """Folder with an unpacked cloud-init; without it the lab applies user-data itself."""
    _started: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def state(self) -> State:
        """The files of the lab."""
        return State(self.folder)

    @property
    def root(self) -> Path:
        """The lab's / as seen from this machine. Raises `LabError` when it does not run."""
        return Path(f"/proc/{self._running_init_pid()}/root")

    @property
    def host(self) -> Host:
        """The lab as a host to connect to. Raises `LabError` before the first start."""
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
        """Boot the lab unless it runs; return when sshd and Docker answer. Raises `LabError`."""
        if self.boot_id():
            return
        self.stop()  # remove what a killed lab has left
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
        """Kill all its processes at once, as a power cut does; keep its disk. Raises `LabError`."""
        supervisor = self._supervisor()
        if supervisor is not None:
            unshare = only_child(supervisor)
            pids = [pid for pid in (supervisor, unshare, only_child(unshare)) if pid is not None]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda: not any(is_alive(pid) for pid in pids),
                _STOP_TIMEOUT_S,
                "the lab does not end",
            )
        if self._started is not None:
            self._started.wait(_STOP_TIMEOUT_S)
            self._started = None
        (self.folder / "pid").unlink(missing_ok=True)
        remove_cgroups(self._cgroup)

    def reboot(self) -> None:
        """Stop and start it, with the same disk, keys and port. Raises `LabError`."""
        self.stop()
        self.start()

    def wait_for_boot(self, *, after: str) -> None:
        """Wait until a boot with another id than `after` is ready. Raises `LabError`."""
        wait_until(
            lambda: self.boot_id() not in {"", after}, BOOT_TIMEOUT_S, "the lab did not boot again"
        )

    def boot_id(self) -> str:
        """The boot id of a lab that is ready; empty otherwise."""
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
        """Wait while a unit is `activating` and return its ActiveState. Raises `LabError`."""
        state = "activating"

        def has_ended() -> bool:
            nonlocal state
            state = self.exec_inside("systemctl", "is-active", unit, check=False).stdout.strip()
            return state != "activating"

        wait_until(has_ended, timeout_s, f"{unit} is still activating")
        return state

    def remove(self) -> None:
        """Stop it and remove its folder; no process, mount or file remains."""
        self.stop()
        if self.folder.exists():
            self.state.remove()

    # --- inside ---

    def exec_inside(
        self, *words: str, stdin: bytes = b"", check: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the lab as root, without SSH.

        Raises `LabError` when it fails, unless `check` is False.
        """
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

    def load_base_image(self, image: BaseImage) -> None:
        """Import the base image into the lab's Docker unless it is there. Raises `LabError`."""
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

    def reset_disk(self) -> None:
        """Remove driver, containers and the toolkit's files from the disk, and reboot.

        The base image and the keys stay.
        """
        self.exec_inside("sh", "-c", _RESET_DISK)
        self.reboot()

    def shell(self) -> int:
        """Run an interactive shell of root in the lab; return its status."""
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
        return [
            "nsenter",
            "--target",
            str(self._running_init_pid()),
            *namespaces,
            *environment,
            *words,
        ]

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
        (self.folder / "pid").write_text(f"{self._started.pid} {start_ticks(self._started.pid)}")

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

    def _fail(self, message: str) -> None:
        lines = self.state.console.read_text(errors="replace").rstrip().splitlines()[-15:]
        self.stop()
        raise LabError(
            message, where=str(self.folder), why="\n".join(lines), fix=f"cat {self.state.console}"
        )

    def init_pid(self) -> int | None:
        """The PID of the lab's first process on this machine; None when the lab does not run."""
        return only_child(only_child(self._supervisor()))

    def _running_init_pid(self) -> int:
        if (pid := self.init_pid()) is None:
            raise LabError("the lab does not run", where=str(self.folder), fix="lab/lab up")
        return pid

    def _supervisor(self) -> int | None:
        try:
            pid, started = (self.folder / "pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if started and start_ticks(int(pid)) == started else None
