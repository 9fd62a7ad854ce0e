"""The folder of a mock host: the root that its shells see, its stand-ins, and the state that no file of it shows.

FOLDER/root      what "$R" names on the host FOLDER/state     mount table, loaded module, units,
faults, metadata FOLDER/mock      the stand-ins: first on PATH FOLDER/sysbin    links to the
system's utilities, those that Container-Optimized OS has and no others FOLDER/image     /etc as the
image brings it
"""

from __future__ import annotations

import compileall
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.testing.host.gpu_models import DRIVERS, OLDER_DRIVERS, Gpu
from provision.testing.host.processes import MockHostError, Processes
from provision.testing.host.utilities import WRITERS, link_utilities

STANDINS = Path(__file__).parents[1] / "standins"

OS_RELEASE = """\
NAME="Container-Optimized OS"
ID=cos
PRETTY_NAME="Container-Optimized OS from Google"
HOME_URL="https://cloud.google.com/container-optimized-os/docs"
BUG_REPORT_URL="https://cloud.google.com/container-optimized-os/docs/resources/support-policy#contact_us"
GOOGLE_METRICS_PRODUCT_ID=26
KERNEL_COMMIT_ID=6d3e3bb4d3f5a1a7a9d3c7f2ab1f0c8e4f1b6a52
GOOGLE_CRASH_ID=Lakitu
VERSION=125
VERSION_ID=125
BUILD_ID=19216.655.28
"""


UBUNTU_RELEASE = """\
PRETTY_NAME="Ubuntu 24.04.3 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
ID=ubuntu
ID_LIKE=debian
"""
COS_ONLY = ("cos-extensions", "docker-credential-gcr", "toolbox")


@dataclass(frozen=True)
class Machine:
    """What the host shows of its hardware."""

    name: str
    gpu: Gpu | None
    gpu_count: int
    cpus: int
    memory_gb: int
    system: str = "cos"


class Layout:
    """One host's folder. Everything in it belongs to the user that the shells run as."""

    def __init__(self, folder: Path, processes: Processes, shell: str) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.state = folder / "state"
        self._processes = processes
        self.shell = shell

    # --- making ---

    def prepare(self, machine: Machine) -> None:
        """Write what the server owns: stand-ins, links to utilities, the image's /etc, the hardware. Idempotent."""
        for name in (
            "root",
            "state/faults",
            "state/metadata",
            "state/buckets",
            "image/etc/systemd/system",
        ):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.folder / "mock", ignore_errors=True)
        shutil.copytree(
            STANDINS, self.folder / "mock", ignore=shutil.ignore_patterns("__pycache__")
        )
        for name in ("docker", "mps"):
            source = STANDINS.with_name(name)
            compileall.compile_dir(
                source, quiet=2
            )  # the copies have its dates, so what was compiled once serves every host
            shutil.copytree(source, self.folder / f"mock/lib/{name}_standin")
        link_utilities(self.folder / "sysbin", self.shell, self.folder / "mock" / "fallback")
        if machine.system != "cos":
            for name in COS_ONLY:
                (self.folder / "mock" / "bin" / name).unlink()
        self._link_writers()
        self._set_interpreter()
        self._write_image(machine)
        self._write_hardware(machine)
        self.own("mock", "sysbin", "image", "state", "root")

    def _link_writers(self) -> None:
        """The folder that comes first on PATH while the disk is full."""
        folder = self.folder / "mock" / "full-disk"
        folder.mkdir()
        for name in WRITERS:
            if (self.folder / "sysbin" / name).exists():
                (folder / name).symlink_to("../lib/full-disk")

    def _set_interpreter(self) -> None:
        """Let the stand-ins run, under the host's own shell; a path that no `#!` line can hold stays with /bin/sh."""
        interpreter = str(self.folder / "sysbin" / "sh")
        if len(interpreter) > 120 or " " in interpreter:
            interpreter = "/bin/sh"
        for path in (self.folder / "mock").rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            data = path.read_bytes()
            if data.startswith(b"#!/bin/sh\n"):
                path.write_bytes(f"#!{interpreter}\n".encode() + data[len(b"#!/bin/sh\n") :])
                path.chmod(0o755)  # not every archive keeps modes

    def _write_image(self, machine: Machine) -> None:
        etc = self.folder / "image" / "etc"
        files = {
            "os-release": OS_RELEASE if machine.system == "cos" else UBUNTU_RELEASE,
            "hostname": machine.name + "\n",
            "hosts": "127.0.0.1 localhost\n169.254.169.254 metadata.google.internal metadata\n",
            "ld.so.conf": "include ld.so.conf.d/*.conf\n",
            "fstab": "",
            "passwd": "root:x:0:0:root:/root:/bin/bash\n",
            "default/toolbox": "",
            "docker/daemon.json": '{"live-restore": true, "storage-driver": "overlay2", "mtu": 1460}\n',
        }
        for name, text in files.items():
            (etc / name).parent.mkdir(parents=True, exist_ok=True)
            (etc / name).write_text(text)

    def _write_hardware(self, machine: Machine) -> None:
        gpu = machine.gpu
        values = {
            "GPU_NAME": gpu.name if gpu else "none",
            "GPU_COUNT": str(machine.gpu_count if gpu else 0),
            "GPU_MEMORY": str(gpu.memory_mib if gpu else 0),
            "GPU_CC": gpu.compute_capability if gpu else "",
            "GPU_SMS": str(gpu.multiprocessors if gpu else 0),
            "GPU_PCI": gpu.pci_device if gpu else "",
            "GPU_CLASS": gpu.pci_class if gpu else "",
        }
        self.write_state("gpu", _assignments(values))
        self.write_state("spawner", f"{self._processes.spawner_pid}\n")
        self.write_state("lib", f"{self.folder}/mock/lib\n")
        self.write_state(
            "machine",
            _assignments(
                {
                    "CPUS": str(machine.cpus),
                    "MEMORY_KB": str(machine.memory_gb * 1024 * 1024),
                    "SYSTEM": machine.system,
                }
            ),
        )
        listed = [*DRIVERS, *((f"R{number}", number) for number in OLDER_DRIVERS)]
        if not (self.state / "drivers").exists():
            self.write_state("drivers", "".join(f"{label} {number}\n" for label, number in listed))

    def write_state(self, name: str, text: str) -> None:
        """Put a file into the mock's own state."""
        path = self.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if self._processes.as_root:
            os.chown(path, self._processes.uid, self._processes.gid)

    def own(self, *names: str) -> None:
        """Give files that a root server made to the user of the shells; links are not followed."""
        if not self._processes.as_root:
            return
        uid, gid = self._processes.uid, self._processes.gid
        os.chown(self.folder, uid, gid)
        for name in names:
            for base, folders, files in os.walk(self.folder / name):
                os.chown(base, uid, gid, follow_symlinks=False)
                for entry in (*folders, *files):
                    os.chown(Path(base, entry), uid, gid, follow_symlinks=False)

    # --- running ---

    def boot(self) -> None:
        """Start the machine: the same work at the first start and at a reboot."""
        shell = str(self.folder / "sysbin" / "sh")
        path = f"{self.folder}/sysbin"
        status, output = self._processes.run(
            [shell, str(self.folder / "mock/lib/boot"), str(self.folder)],
            env={"PATH": path},
            cwd="/",
        )
        if status != 0:
            raise MockHostError(f"the mock host did not boot (status {status}): {output.strip()}")

    def environment(
        self, user: str, *, extra_path: Iterable[str] = (), sudo: bool = False
    ) -> dict[str, str]:
        """The environment in which sshd starts the user's shell."""
        path = [
            *extra_path,
            str(self.folder / "mock/bin"),
            str(self.folder / "sysbin"),
            str(self.root / "usr/bin"),
        ]
        environment = {
            "PATH": ":".join(path),
            "HOME": str(self.root / ("root" if sudo else f"home/{user}")),
            "USER": "root" if sudo else user,
            "LOGNAME": "root" if sudo else user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "PROVISION_MOCK_ROOT": str(self.root),
            "PROVISION_MOCK_STATE": str(self.state),
        }
        return {**environment, "PROVISION_MOCK_SUDO": "1"} if sudo else environment

    def login_shell(self) -> str:
        """bash, as on Container-Optimized OS, or the shell that was asked for."""
        bash = self.folder / "sysbin" / "bash"
        return (
            str(bash)
            if self.shell == "system" and bash.exists()
            else str(self.folder / "sysbin" / "sh")
        )


def _assignments(values: Mapping[str, str]) -> str:
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())
