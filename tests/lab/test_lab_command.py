"""The command `lab`: up, status, exec and down, what they leave behind, and their errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cli import main
from lab.host import Lab
from lab.programs import LabError, find_programs
from tests.lab.conftest import ENGINE

ROOT = Path(__file__).parent.parent.parent


def command(*words: str, state: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "lab" / "lab"), "--state", str(state), *words],
        check=check,
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
    )


def mounts() -> list[str]:
    return Path("/proc/self/mounts").read_text().splitlines()


def processes_of(folder: Path) -> list[str]:
    """Processes that name the folder on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found


def cgroups() -> list[Path]:
    top = Path("/sys/fs/cgroup")
    return [*top.glob("*/provision-lab-*"), *top.glob("provision-lab-*")]


@pytest.fixture
def folder(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for a second lab beside that of the session."""
    place = tmp_path_factory.mktemp("second") / "lab"
    yield place
    Lab(place, engine=lab.engine).remove()


def test_up_prints_host_and_down_leaves_nothing(folder: Path) -> None:
    before, groups = mounts(), set(cgroups())
    up = json.loads(
        command(
            "up", "--beam", "none", "--gpu", "nvidia-tesla-t4", "--gpu-count", "2", state=folder
        ).stdout
    )
    assert up["running"] is True
    host = up["hosts"]["lab"]
    ssh = [
        "ssh",
        "-q",
        "-F",
        "none",
        "-i",
        host["identity"],
        "-p",
        str(host["port"]),
        "-o",
        "StrictHostKeyChecking=yes",
    ]
    known = folder.parent / "known_hosts"
    known.write_text(f"[{host['address']}]:{host['port']} {host['host_key']}\n")
    words = [
        *ssh,
        "-o",
        f"UserKnownHostsFile={known}",
        f"{host['user']}@{host['address']}",
        "ls -d /sys/bus/pci/devices/*:c0:*",
    ]
    assert (
        len(
            subprocess.run(
                words, check=True, capture_output=True, text=True, timeout=60
            ).stdout.split()
        )
        == 2
    )

    assert command("exec", "hostname", state=folder).stdout == "lab\n"
    assert command("exec", "sh", "-c", "exit 5", state=folder, check=False).returncode == 5
    assert json.loads(command("up", "--beam", "none", state=folder).stdout) == up, (
        "a second `up` starts the same lab"
    )
    command("exec", "sh", "-c", "echo x >/var/lib/kept; echo x >/etc/lost", state=folder)
    assert json.loads(command("reboot", state=folder).stdout) == up
    assert (
        command("exec", "ls", "/etc/lost", "/var/lib/kept", state=folder, check=False).stdout
        == "/var/lib/kept\n"
    )

    command("down", state=folder)
    assert not folder.exists()
    assert processes_of(folder) == []
    assert mounts() == before
    assert set(cgroups()) == groups
    assert command("status", state=folder, check=False).returncode == 1


def test_killed_lab_starts_again(folder: Path) -> None:
    second = Lab(folder, engine=ENGINE)
    second.start()
    port = second.host.port
    init = second.init_pid()
    assert init is not None
    os.kill(init, 9)
    while second.init_pid() is not None:
        time.sleep(0.01)
    try:
        second.start()
        assert second.host.port == port
        assert (
            second.exec_inside("docker", "version", "--format", "{{.Server.Os}}").stdout
            == "linux\n"
        )
    finally:
        second.remove()


def test_lab_ends_with_its_supervisor(folder: Path) -> None:
    second = Lab(folder, engine=ENGINE)
    second.start()
    try:
        os.kill(int((folder / "pid").read_text().split()[0]), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while (left := processes_of(folder)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left == []
    finally:
        second.remove()


def test_error_lists_missing_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.access

    def without_dockerd(path: str | os.PathLike[str], mode: int, **rest: bool) -> bool:
        return not str(path).endswith("/dockerd") and real(path, mode, **rest)

    monkeypatch.setattr(os, "access", without_dockerd)
    with pytest.raises(LabError, match="programs of the lab are missing") as caught:
        find_programs(None)
    assert caught.value.why == "dockerd"


def test_error_without_root_says_root_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--state", str(tmp_path / "lab"), "up"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "lab: the lab needs root",
        "  try: sudo make lab",
    ]
    assert not (tmp_path / "lab").exists()
