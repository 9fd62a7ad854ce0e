"""mps.top: one exchange for its whole life, frames that follow changes, a clean end."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provision.commands.mps.disable import mps_disable
from provision.commands.mps.top import StatusStream, mps_top
from provision.core.errors import Unreachable
from provision.mps.status.status import MpsStatus
from provision.testing import MockHost
from tests.mock.sharing import HERE, Shared

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A host with MPS enabled."""
    with MockHost() as host:
        made = Shared(tmp_path_factory.mktemp("top"), host)
        assert made.up().exit_code == 0
        made.enable()
        yield made


@dataclass
class Scripted:
    """A view that returns keys, chosen by what the last frame shows."""

    react: Callable[[str], str]
    shown: list[str] = field(default_factory=list)
    keys: str = ""

    def show(self, text: str) -> None:
        self.shown.append(text)
        self.keys = self.react(text)

    def read_keys(self, timeout_s: float) -> str:
        time.sleep(timeout_s)
        keys, self.keys = self.keys, ""
        return keys


def test_frames_show_changes_over_one_exchange(box: Shared) -> None:
    before = box.host.stats.exchanges
    with box.program() as client:
        opened = box.host.stats.exchanges - before
        view = Scripted(lambda text: "q" if len(view.shown) >= 3 and client.pid in text else "")
        done = mps_top(box.project, HERE, view=view, every_s=0.05)
    assert done.exit_code == 0
    assert len(view.shown) >= 3
    assert [each["pid"] for each in done.document["clients"]] == [int(client.pid)]
    assert "NVIDIA L4" in view.shown[0]
    assert "q quits" in view.shown[0]
    assert "activity not known, 0 of 23034 MiB in use" in view.shown[0], "the mock measures nothing"
    assert box.host.stats.exchanges - before - opened == 1


def test_ctrl_c_ends_top_with_success(box: Shared) -> None:
    def interrupt(text: str) -> str:
        raise KeyboardInterrupt

    assert mps_top(box.project, HERE, view=Scripted(interrupt)).exit_code == 0


def test_lost_connection_is_reported(box: Shared) -> None:
    def cut(text: str) -> str:
        box.host.server.drop_connections()
        return ""

    with pytest.raises(Unreachable):
        mps_top(box.project, HERE, view=Scripted(cut), every_s=0.05)


def test_top_without_terminal_prints_one_frame(box: Shared) -> None:
    done = mps_top(box.project, HERE)
    assert done.document["server"]["state"] == "ACTIVE"
    assert "thread percentage  100 % for each client" in done.text
    assert "q quits" not in done.text, "the program has ended"
    (gpu,) = done.document["gpus"]
    assert (gpu["name"], gpu["utilization_percent"], gpu["memory_total_mib"]) == (
        "NVIDIA L4",
        None,
        23034,
    )


def test_frames_are_read_from_any_chunks() -> None:
    frames = StatusStream("m4rk")
    for byte in b"container=true\npercentage=50.0\nm4rk\ncontainer=false\nm4rk\ncont":
        frames.feed(bytes([byte]))
    found = [frames.queue.get_nowait() for _ in range(2)]
    assert all(isinstance(each, MpsStatus) for each in found)
    assert frames.queue.empty()


def test_top_without_terminal_exits_like_mps_status(box: Shared) -> None:
    assert mps_top(box.project, HERE).exit_code == 0
    assert mps_disable(box.project, HERE, force=True).exit_code == 0
    done = mps_top(box.project, HERE)
    assert (done.exit_code, done.document["daemon"]) == (1, False)
    box.host.run("docker stop --time 0 worker")
    assert mps_top(box.project, HERE).exit_code == box.status().exit_code == 1
    assert box.up().exit_code == 0
    box.enable()


SHOW = """
from provision.report.screen import Screen
with Screen() as screen:
    screen.show("one\\n\\x1b[31mtwo\\n" + "x" * 500 + "\\n" * 27 + "last")
    while "q" not in screen.read_keys(0.1):
        pass
print("after")
"""


def test_screen_is_restored_and_keys_are_not_echoed(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW], stdin=terminal, stdout=terminal, stderr=terminal, env=env
    )
    os.close(terminal)
    output = b""
    while b"terminal" not in output:
        output += os.read(controller, 4096)
    os.write(controller, b"zq")
    while b"after" not in output:
        output += os.read(controller, 4096)
    assert process.wait(20) == 0
    os.close(controller)
    assert b"\x1b[?1049h" in output
    assert output.index(b"\x1b[?1049l") < output.index(b"after")
    assert b"\x1b[31m" not in output
    assert b"zq" not in output
    assert (b"\xe2\x80\xa6 7 more lines" in output, b"last" in output) == (True, False)
