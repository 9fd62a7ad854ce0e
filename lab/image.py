"""The lab's image: /etc and /usr/local of Container-Optimized OS, with stand-ins."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import real_driver
from lab.programs import Programs
from lab.state import USER, State, assignments
from lab.user_data import as_script
from provision.testing.host.filesystem import OS_RELEASE, STANDINS
from provision.testing.host.gpu_models import DRIVERS, OLDER_DRIVERS, gpu_model

GUEST = Path(__file__).with_name("guest")
SHARED_STANDINS = ("docker-credential-gcr", "toolbox", "journalctl", "lsmod")
"""The mock's stand-ins that the lab runs unchanged; those with a wrapper are in guest/bin."""
ENGINE_PROGRAMS = frozenset(
    {
        "containerd",
        "containerd-shim-runc-v2",
        "docker",
        "docker-init",
        "dockerd",
        "runc",
        "tini-static",
    }
)
PYTHON_STANDINS = ("mps",)
"""Stand-ins that are Python packages; containers run them with the Python of their image."""
NAME = "lab"
USER_ID = 20000
SUDOERS_ID = 1002
"""Group of metadata users; a number that this machine does not use."""


@dataclass(frozen=True)
class Gpu:
    """The lab's GPUs: accelerator type and count, or with `real` those of this machine."""

    accelerator: str = "nvidia-l4"
    count: int = 1
    real: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Gpu:
        """The GPU of PROVISION_LAB_GPU: `real`, `none` or an accelerator type; else an L4."""
        match environment.get("PROVISION_LAB_GPU", ""):
            case "":
                return cls()
            case "real":
                return cls(real=True)
            case "none":
                return cls(count=0)
            case accelerator:
                return cls(accelerator)


def write_image(
    state: State, gpu: Gpu, programs: Programs, *, port: int, cgroup: str, user_data: str
) -> None:
    """Replace the image."""
    shutil.rmtree(state.image, ignore_errors=True)
    _write_etc(state.image / "etc", port)
    _write_local(state, gpu, programs, user_data)
    config = assignments(
        {
            "NAME": NAME,
            "USER_NAME": USER,
            "PYTHON": str(programs.python),
            "SSHD": programs.inside(programs.sshd),
            "ENGINE": str(programs.engine or ""),
            "CLOUD_INIT": str(programs.cloud_init or ""),
            "CGROUP": cgroup,
            "GPU_SOURCE": "real" if gpu.real else "standin",
        }
    )
    (state.folder / "config").write_text(config)
    (state.local / "config").write_text(config)


PASSWD = f"""\
root:x:0:0:root:/root:/bin/bash
sshd:x:105:65534::/run/sshd:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash
"""
GROUP = f"""\
root:x:0:
adm:x:4:{USER}
tty:x:5:
disk:x:6:
sudo:x:27:
shadow:x:42:
utmp:x:43:
video:x:44:{USER}
nogroup:x:65534:
docker:x:412:{USER}
google-sudoers:x:{SUDOERS_ID}:{USER}
{USER}:x:{USER_ID}:
"""
SUDOERS = """\
Defaults env_reset
Defaults secure_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
root ALL=(ALL:ALL) ALL
%google-sudoers ALL=(ALL:ALL) NOPASSWD:ALL
"""
PAM_SUDO = """\
auth sufficient pam_permit.so
account sufficient pam_permit.so
session sufficient pam_permit.so
"""


def _write_etc(etc: Path, port: int) -> None:
    files = {
        "os-release": OS_RELEASE,
        "hostname": f"{NAME}\n",
        "hosts": f"127.0.0.1 localhost {NAME}\n::1 localhost\n",
        "passwd": PASSWD,
        "group": GROUP,
        # "*" and not "!": an sshd without PAM refuses every login of a locked account.
        "shadow": "".join(
            f"{line.split(':')[0]}:*:20000:0:99999:7:::\n" for line in PASSWD.splitlines()
        ),
        "gshadow": "",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        "sudoers": SUDOERS,
        "pam.d/sudo": PAM_SUDO,
        "fstab": "",
        "docker/daemon.json": '{"live-restore": true, "log-driver": "json-file"}\n',
        "ssh/sshd_config": _sshd_config(port),
        "default/toolbox": "",
    }
    for name, text in files.items():
        (etc / name).parent.mkdir(parents=True, exist_ok=True)
        (etc / name).write_text(text)
    (etc / "shadow").chmod(0o600)
    (etc / "sudoers").chmod(0o440)


def _sshd_config(port: int) -> str:
    # Key logins only and no root, as in the security overview of Container-Optimized OS.
    return f"""\
Port {port}
ListenAddress 127.0.0.1
HostKey /mnt/stateful_partition/etc/ssh/ssh_host_ed25519_key
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
"""


def _write_local(state: State, gpu: Gpu, programs: Programs, user_data: str) -> None:
    """Write /usr/local: programs on PATH in bin, their parts in lib/lab."""
    lab, bin_dir = state.local, state.image / "local" / "bin"
    for name in ("bin", "sbin", "lib", "etc", "share"):
        (state.image / "local" / name).mkdir(parents=True)
    _copy_guest(lab)
    for name in SHARED_STANDINS:
        _script(bin_dir / name, f'exec /usr/local/lib/lab/standins/bin/{name} "$@"')
    for path in (lab / "bin").iterdir():
        if path.name != "sudo":
            (bin_dir / path.name).symlink_to(f"/usr/local/lib/lab/bin/{path.name}")
    for path in _engine_programs(programs):
        (bin_dir / path.name).symlink_to(programs.inside(path))
    _write_sudo(lab, bin_dir, programs.setpriv)
    (lab / "init").symlink_to(programs.inside(programs.init))
    shutil.copy(state.folder / "keys" / "authorized_keys", lab / "authorized_keys")
    (lab / "user-data").write_text(as_script(user_data))
    (lab / "user-data.yaml").write_text(user_data)
    _write_gpu(lab, gpu)
    if gpu.real and not (state.folder / "driver").is_dir():
        real_driver.copy_driver(state.folder / "driver")


def _copy_guest(lab: Path) -> None:
    """Copy the lab's scripts and the mock's stand-ins."""
    shutil.copytree(GUEST, lab)
    for path in (*lab.iterdir(), *(lab / "bin").iterdir()):
        if path.is_file():
            path.chmod(0o755)
    shutil.copytree(STANDINS, lab / "standins")
    for program in (lab / "standins" / "driver").iterdir():
        _add_state_folder(program)
    for name in PYTHON_STANDINS:
        target = lab / "standins" / "lib" / f"{name}_standin"
        shutil.copytree(
            STANDINS.with_name(name), target, ignore=shutil.ignore_patterns("__pycache__")
        )


def _add_state_folder(program: Path) -> None:
    """Make a driver stand-in find its state, in a container beside its libraries."""
    text = program.read_text()
    if text.startswith("#!/bin/sh\n"):
        line = (
            "test -r /run/provision-mock/gpu || export PROVISION_MOCK_STATE=${0%/*}/../lib64/.lab\n"
        )
        program.write_text(text.replace("#!/bin/sh\n", f"#!/bin/sh\n{line}", 1))


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _engine_programs(programs: Programs) -> list[Path]:
    """The programs of the unpacked engine, which come first on PATH."""
    if programs.engine is None:
        return []
    folders = [programs.engine / name for name in ("usr/sbin", "usr/bin", "sbin", "bin")]
    found = {
        path.name: path
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if os.access(path, os.X_OK)
    }
    return [path for name, path in sorted(found.items()) if name in ENGINE_PROGRAMS]


def _write_sudo(lab: Path, bin_dir: Path, setpriv: Path) -> None:
    """Without sudo on this machine, add a stand-in around a setuid copy of setpriv."""
    if Path("/usr/bin/sudo").exists():
        return
    privileged = lab / "setpriv-root"
    shutil.copy(setpriv, privileged)
    os.chown(privileged, 0, SUDOERS_ID)
    privileged.chmod(stat.S_ISUID | 0o750)
    (bin_dir / "sudo").symlink_to("/usr/local/lib/lab/bin/sudo")


def _write_gpu(lab: Path, gpu: Gpu) -> None:
    card = gpu_model(gpu.accelerator)
    values = {
        "GPU_NAME": card.name,
        "GPU_COUNT": str(gpu.count),
        "GPU_MEMORY": str(card.memory_mib),
        "GPU_CC": card.compute_capability,
        "GPU_SMS": str(card.multiprocessors),
        "GPU_PCI": card.pci_device,
        "GPU_CLASS": card.pci_class,
    }
    (lab / "gpu").write_text(assignments(values))
    (lab / "real-gpus").write_text(
        " ".join(real_driver.gpu_minor_numbers() if gpu.real else []) + "\n"
    )
    listed = [*DRIVERS, *((f"R{number}", number) for number in OLDER_DRIVERS)]
    (lab / "drivers").write_text("".join(f"{label} {number}\n" for label, number in listed))
