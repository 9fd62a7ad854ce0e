"""The command line on a terminal: shells on the host and in the container; the system's ssh."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.base_image import BaseImage
from lab.host import Lab


@pytest.fixture
def project(lab: Lab, image: BaseImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose settings name the lab."""
    host = lab.host
    entry = {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "identity": host.identity,
        "host_key": host.host_key,
    }
    settings = {
        "provision": {"name": "lab", "hosts": {"lab": entry}, "worker": {"python": image.python}}
    }
    (tmp_path / "invoke.yaml").write_text(json.dumps(settings))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Terminal:
    """A child process on a terminal of 33 lines and 77 columns, with typed input."""

    def __init__(self, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(sys.executable, [sys.executable, "-m", "provision", *words])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def read_until(self, text: str, timeout_s: float = 30) -> str:
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(
                    f"it ended, and {text!r} did not appear in {self.seen!r}"
                ) from None
        before, _, self.seen = self.seen.partition(text)
        return before

    def status(self) -> int:
        while True:
            try:
                if not os.read(self.fd, 4096):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(project: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        opened.append(Terminal(*words))
        return opened[-1]

    yield start
    for each in opened:
        os.close(each.fd)


def test_vm_ssh_opens_host_shell(terminal: Callable[..., Terminal]) -> None:
    shell = terminal("vm.ssh")
    shell.type('stty size; echo "$USER at $(hostname)"\n')
    shell.read_until("33 77")
    shell.read_until("dev at lab")
    shell.type("exit 5\n")
    assert shell.status() == 5


def test_dev_shell_opens_container_shell(
    terminal: Callable[..., Terminal], worker_container: str
) -> None:
    shell = terminal("dev.shell")
    # docker's client sends the size once the shell runs: for a moment it is 0 0
    shell.type(
        "pwd; until test \"$(stty size)\" != '0 0'; do sleep 0.1; done; stty size; cat "
        "/proc/1/comm\n"
    )
    shell.read_until("/workspace\r\n")
    shell.read_until("33 77")
    shell.read_until("docker-init")
    shell.type("sleep 30\n")
    time.sleep(0.5)
    shell.type("\x03")
    shell.type("echo still $((6 * 7))\n")
    shell.read_until("still 42", timeout_s=10)
    shell.type("exit 6\n")
    assert shell.status() == 6


def test_system_ssh_uses_config_fragment(project: Path, lab: Lab) -> None:
    text = subprocess.run(
        [sys.executable, "-m", "provision", "vm.ssh-config"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    (project / "ssh_config").write_text(text)
    key = lab.host.host_key
    words = [
        "ssh",
        "-F",
        str(project / "ssh_config"),
        "-o",
        "ControlMaster=no",
        "-o",
        "BatchMode=yes",
        "lab",
        "id -un",
    ]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("dev\n", 0), f"{done.stderr}\n{text}\npinned: {key}"
