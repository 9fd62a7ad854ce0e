"""The folder of a mock host.

FOLDER/root      the root folder of the host, "$R" in scripts
FOLDER/state     the mock's own state: mount table, loaded module, units, faults, metadata
FOLDER/mock      the stand-ins, first on PATH
FOLDER/sysbin    links to the utilities of this machine that Container-Optimized OS has
FOLDER/image     /etc of the operating system's image
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.testing.host.gpu_models import DRIVERS, OLDER_DRIVERS, Gpu
from provision.testing.host.processes import MockHostError, Processes
from provision.testing.host.utilities import WRITING_UTILITIES, link_utilities

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
DAEMON_JSON = '{"live-restore": true, "storage-driver": "overlay2", "mtu": 1460}\n'
COS_ONLY = ("cos-extensions", "docker-credential-gcr", "toolbox")


@dataclass(frozen=True)
class Hardware:
    """The hardware and the operating system (`cos` or `ubuntu`) of a mock host."""

    name: str
    gpu: Gpu | None
    gpu_count: int
    cpus: int
    memory_gb: int
    system: str = "cos"


class HostFilesystem:
    """One host's folder. The user of the host's shells owns everything in it."""

    def __init__(self, folder: Path, processes: Processes, shell: str) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.state = folder / "state"
        self._processes = processes
        self.shell = shell

    # --- creation ---

    def prepare(self, hardware: Hardware) -> None:
        """Write the stand-ins, the utilities, the image's /etc and the hardware. Idempotent."""
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
            _copy_compiled(STANDINS.with_name(name), self.folder / f"mock/lib/{name}_standin")
        link_utilities(self.folder / "sysbin", self.shell, self.folder / "mock" / "fallback")
        if hardware.system != "cos":
            for name in COS_ONLY:
                (self.folder / "mock" / "bin" / name).unlink()
        self._link_writers()
        self._set_interpreter()
        self._write_image(hardware)
        self._write_hardware(hardware)
        self.own("mock", "sysbin", "image", "state", "root")

    def _link_writers(self) -> None:
        """Fill the folder that comes first on PATH while the disk is full."""
        folder = self.folder / "mock" / "full-disk"
        folder.mkdir()
        for name in WRITING_UTILITIES:
            if (self.folder / "sysbin" / name).exists():
                (folder / name).symlink_to("../lib/full-disk")

    def _set_interpreter(self) -> None:
        """Make the stand-ins run in the host's shell, or /bin/sh if its path does not fit `#!`."""
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

    def _write_image(self, hardware: Hardware) -> None:
        etc = self.folder / "image" / "etc"
        files = {
            "os-release": OS_RELEASE if hardware.system == "cos" else UBUNTU_RELEASE,
            "hostname": hardware.name + "\n",
            "hosts": "127.0.0.1 localhost\n169.254.169.254 metadata.google.internal metadata\n",
            "ld.so.conf": "include ld.so.conf.d/*.conf\n",
            "fstab": "",
            "passwd": "root:x:0:0:root:/root:/bin/bash\n",
            "default/toolbox": "",
            "docker/daemon.json": DAEMON_JSON,
        }
        for name, text in files.items():
            (etc / name).parent.mkdir(parents=True, exist_ok=True)
            (etc / name).write_text(text)

    def _write_hardware(self, hardware: Hardware) -> None:
        gpu = hardware.gpu
        values = {
            "GPU_NAME": gpu.name if gpu else "none",
            "GPU_COUNT": str(hardware.gpu_count if gpu else 0),
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
                    "CPUS": str(hardware.cpus),
                    "MEMORY_KB": str(hardware.memory_gb * 1024 * 1024),
                    "SYSTEM": hardware.system,
                }
            ),
        )
        listed = [*DRIVERS, *((f"R{number}", number) for number in OLDER_DRIVERS)]
        if not (self.state / "drivers").exists():
            self.write_state("drivers", "".join(f"{label} {number}\n" for label, number in listed))

    def write_state(self, name: str, text: str) -> None:
        """Write a file of the mock's state."""
        path = self.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if self._processes.as_root:
            os.chown(path, self._processes.uid, self._processes.gid)

    def own(self, *names: str) -> None:
        """Give files that a root server created to the user of the shells; do not follow links."""
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
        """Boot the host, at its first start and at a reboot. Raises `MockHostError`."""
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
        """The path of bash, as on Container-Optimized OS, or of the shell that was asked for."""
        bash = self.folder / "sysbin" / "bash"
        return (
            str(bash)
            if self.shell == "system" and bash.exists()
            else str(self.folder / "sysbin" / "sh")
        )


def _copy_compiled(package: Path, copy: Path) -> None:
    """Copy a package with its byte code, wherever this interpreter keeps that.

    The copies keep the dates of the sources, so one compilation serves every host.
    """
    compileall.compile_dir(package, quiet=2)
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for source in package.rglob("*.py"):
        compiled = Path(importlib.util.cache_from_source(str(source)))
        if compiled.exists():  # not where the package's folder is read-only
            target = copy / source.relative_to(package).parent / "__pycache__" / compiled.name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(compiled, target)


def _assignments(values: Mapping[str, str]) -> str:
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())
