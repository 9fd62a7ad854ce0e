"""N hosts on one machine: OpenSSH's sshd in mount namespaces with the folders of a COS host.

Mounts, files and shells are real. `docker`, `docker-credential-gcr` and `systemctl` are stand-ins
that answer at once, so the benchmark measures the tool and not the work. Each host listens behind a
relay that delays every byte. Needs root (mount namespaces) and Debian's openssh-server.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from provision.testing.network import Network, Relay, Stats

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
_START_TIMEOUT_S = 20.0

_DOCKER = """#!/bin/sh
echo 27.0.0
"""
_CREDENTIALS = """#!/bin/sh
for word; do case $word in --registries=*) list=${word#*=} ;; esac; done
printf '{"credHelpers":{' >"$DOCKER_CONFIG/config.json"
printf '"%s":"gcr"' "$list" >>"$DOCKER_CONFIG/config.json"
printf '}}\\n' >>"$DOCKER_CONFIG/config.json"
"""
_SYSTEMCTL = """#!/bin/sh
case $1 in
    enable) : >"/etc/systemd/system/.enabled.$2" ;;
    is-enabled) test -e "/etc/systemd/system/.enabled.$2" && echo enabled ;;
    is-active) echo inactive; exit 3 ;;
esac
"""
_PROGRAMS = {"docker": _DOCKER, "docker-credential-gcr": _CREDENTIALS, "systemctl": _SYSTEMCTL}

# COS mounts /var noexec; /etc is writable and lost at a reboot. Both tmpfs lose what a run wrote.
_MOUNT_HOST = """
set -e
mount --bind "$1/bin" /usr/local/bin
mount --bind "$1/os-release" /etc/os-release
mount -t tmpfs tmpfs /root
"""
_RESET = """
set -e
umount -R /var/lib 2>/dev/null || true
umount -R /etc/systemd/system 2>/dev/null || true
mount -t tmpfs -o noexec,nosuid,nodev tmpfs /var/lib
mount -t tmpfs tmpfs /etc/systemd/system
"""
_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/../id.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100:30:200
PrintMotd no
Subsystem sftp internal-sftp
"""


@dataclass
class Target:
    """One host: sshd, mount namespace, relay."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    relay: Relay

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def inside(self, script: str, *words: str) -> str:
        """Run a script in the host's namespace without SSH. Raises `RuntimeError`."""
        command = [
            "nsenter",
            f"--mount=/proc/{self.process.pid}/ns/mnt",
            "sh",
            "-c",
            script,
            "sh",
            *words,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {done.stderr}")
        return done.stdout

    def cpu_s(self) -> float:
        """Processor seconds of its sshd and of sshd's ended children (proc(5), fields 14 to 17)."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def sessions(self) -> list[str]:
        """PIDs of sshd's children, one for each connection (proc(5), children)."""
        return (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )

    def reset(self) -> None:
        """Remove everything that earlier runs have written."""
        self.inside(_RESET)


class Targets:
    """All hosts of a benchmark; a context manager that starts and ends them."""

    def __init__(self, folder: Path, count: int, *, round_trip_s: float) -> None:
        self.folder = folder
        self.round_trip_s = round_trip_s
        self._network = Network()
        self._count = count
        self.all: list[Target] = []

    def __enter__(self) -> Self:
        if SSHD is None:
            raise RuntimeError("OpenSSH's sshd is not installed: apt-get install openssh-server")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        _keygen(self.folder / "id")
        self._network.__enter__()
        self.all = [self._start(f"host{number}") for number in range(self._count)]
        (self.folder / "known_hosts").write_text(
            "".join(f"[127.0.0.1]:{target.relay.port} {target.host_key}\n" for target in self.all)
        )
        (self.folder / "ssh_config").write_text(self._ssh_config())
        return self

    def __exit__(self, *exc: object) -> None:
        self._network.__exit__(*exc)
        for target in self.all:
            target.process.terminate()
            target.process.wait(10)

    def stats(self, count: int) -> Stats:
        """The traffic of the relays of the first `count` hosts."""
        found = [target.relay.stats() for target in self.all[:count]]
        return Stats(
            *(
                sum(getattr(stats, name) for stats in found)
                for name in ("connections", "bytes_up", "bytes_down", "turns")
            )
        )

    def cpu_s(self, count: int) -> float:
        """Processor seconds of the first `count` hosts."""
        return sum(target.cpu_s() for target in self.all[:count])

    def wait_for_sessions_to_end(self, limit_s: float = 5.0) -> None:
        """Wait until no host has a session, so that a run is not charged for the previous one."""
        _wait_for(lambda: not any(target.sessions() for target in self.all), limit_s)

    def _start(self, name: str) -> Target:
        folder = self.folder / name
        (folder / "bin").mkdir(parents=True)
        for program, text in _PROGRAMS.items():
            (folder / "bin" / program).write_text(text)
            (folder / "bin" / program).chmod(0o755)
        (folder / "os-release").write_text(
            'NAME="Container-Optimized OS"\nID=cos\nVERSION_ID=125\nBUILD_ID=19216.104.25\n'
        )
        _keygen(folder / "host_key")
        port = _free_port()
        (folder / "sshd_config").write_text(_CONFIG.format(port=port, folder=folder))
        start_script = f'{_MOUNT_HOST}{_RESET}exec {SSHD} -D -f "$1/sshd_config" -E "$1/log"'
        process = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                start_script,
                "sh",
                str(folder),
            ]
        )
        _wait_for(lambda: _answers(port, process, folder / "log"))
        return Target(
            name,
            folder,
            process,
            self._network.relay(("127.0.0.1", port), delay_s=self.round_trip_s / 2),
        )

    def _ssh_config(self) -> str:
        shared = f"""\
Host *
    User root
    HostName 127.0.0.1
    IdentityFile {self.folder}/id
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {self.folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    ControlMaster no
    ControlPath none
    BatchMode yes
"""
        return (
            "".join(f"Host {target.name}\n    Port {target.relay.port}\n" for target in self.all)
            + shared
        )


def _keygen(path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", str(path)],
        check=True,
        timeout=60,
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _answers(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"sshd ended: {log.read_text() if log.exists() else process.returncode}")
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _wait_for(condition: Callable[[], bool], limit_s: float = _START_TIMEOUT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a server did not start, or a session did not end")
        time.sleep(0.02)
