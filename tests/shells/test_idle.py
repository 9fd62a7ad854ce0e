"""idle.sh: what counts as use of a VM and what does not, on a faked uptime, under every shell."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provision.core.job import script_command
from provision.core.shell import script
from provision.recipes import idle_texts
from provision.settings import Settings
from tests.shells.shells import Scratch

LIMIT_S = 45 * 60
MINUTE = 60


_SMI = """#!/bin/sh
test "$LD_LIBRARY_PATH" = "$PROVISION_MOCK_ROOT/var/lib/nvidia/lib64" || exit 9
case $1 in
    --query-gpu=utilization.gpu) cat '{folder}/percents' ;;
    --query-compute-apps=pid) cat '{folder}/apps' ;;
esac
{then}
exit {status}
"""


@dataclass
class Idle:
    """A VM whose uptime, GPU, terminals and processes a test sets."""

    scratch: Scratch
    uptime_s: int = 1000
    processes: int = 0
    output: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        driver = self.root / "var/lib/nvidia/bin"
        driver.mkdir(parents=True)
        (self.root / "dev/pts").mkdir(parents=True)
        (self.root / "dev/pts/ptmx").touch()
        module = self.root / "sys/module/nvidia/version"
        module.parent.mkdir(parents=True)
        module.write_text("580.126.09\n")
        self.gpu("0")
        self.boot("active")
        self.tool(
            "systemctl",
            '#!/bin/sh\ncase $1 in\n    is-active) cat "$BOOT" ;;\n'
            '    *) echo "$@" >>"$ASKED" ;;\nesac\n',
        )
        self.file = self.scratch.tools / "idle.sh"
        self.file.write_text(
            idle_texts(Settings.model_validate({"idle_stop": "45m"}), None)["script"]
        )
        self.says_otherwise("timeout -k 5 30 sh", "timeout -k 1 3 sh")
        self.says_otherwise("timeout -k 5 20 ", "timeout -k 1 1 ")

    def says_otherwise(self, words: str, instead: str) -> None:
        """Replace a part of the script."""
        text = self.file.read_text()
        assert text.count(words) == 1
        self.file.write_text(text.replace(words, instead))

    @property
    def root(self) -> Path:
        return self.scratch.root

    def tool(self, name: str, text: str) -> None:
        path = self.scratch.tools / name
        path.write_text(text)
        path.chmod(0o755)

    def gpu(self, percents: str, apps: str = "", *, status: int = 0, then: str = "") -> None:
        """Set the output and status of nvidia-smi, which needs its library on the path."""
        folder = self.scratch.tools
        (folder / "percents").write_text(percents and f"{percents}\n")
        (folder / "apps").write_text(apps)
        program = self.root / "var/lib/nvidia/bin/nvidia-smi"
        program.write_text(_SMI.format(folder=folder, status=status, then=then))
        program.chmod(0o755)

    def boot(self, state: str) -> None:
        (self.scratch.tools / "boot-state").write_text(f"{state}\n")

    def terminal(self, number: int, *, read_s: float, written_s: float) -> None:
        """Add a terminal with its last input and output, in seconds before now."""
        path = self.root / "dev/pts" / str(number)
        path.touch()
        now = time.time()
        os.utime(path, (now - read_s, now - written_s))

    def process(self, *words: str) -> None:
        self.processes += 1
        folder = self.root / "proc" / str(100 + self.processes)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))

    def after(self, seconds: int) -> str:
        """Run the check after this time: `on`, or `off…` when it powers off."""
        self.uptime_s += seconds
        (self.root / "proc/uptime").write_text(f"{self.uptime_s}.42 7.00\n")
        asked = self.scratch.tools / "asked"
        asked.unlink(missing_ok=True)
        shell = self.scratch.shell
        path = os.pathsep.join([str(self.scratch.tools), shell.path])
        done = shell.run(
            'exec sh "$1" "$2"',
            str(self.file),
            str(LIMIT_S),
            PATH=path,
            PROVISION_MOCK_ROOT=str(self.root),
            BOOT=str(self.scratch.tools / "boot-state"),
            ASKED=str(asked),
        )
        assert (done.returncode, done.stderr) == (0, b"")
        self.output = done.stdout.decode().splitlines()
        if not asked.exists():
            return "on"
        assert asked.read_text() == "poweroff\n"
        return "off: " + self.output.pop()


@pytest.fixture
def idle(scratch: Scratch) -> Idle:
    return Idle(scratch)


def test_idle_vm_powers_itself_off_at_its_limit(idle: Idle) -> None:
    assert idle.after(0) == "on", "the boot counts as use"
    assert idle.after(LIMIT_S - 1) == "on"
    assert idle.after(1) == "off: provision: not used for 45 min: powering off (idle_stop)"


def test_computing_gpu_counts_as_use(idle: Idle) -> None:
    idle.after(0)
    idle.gpu("0\n1")
    assert idle.after(LIMIT_S) == "on"
    idle.gpu("0\n0")
    assert idle.after(LIMIT_S - MINUTE) == "on"
    assert idle.after(MINUTE).startswith("off")


@pytest.mark.parametrize(("apps", "end"), [("4711\n", "on"), ("", "off")])
def test_gpu_without_utilisation_figure_is_busy_while_it_has_a_process(
    idle: Idle, apps: str, end: str
) -> None:
    idle.after(0)
    idle.gpu("[N/A]", apps)
    assert idle.after(LIMIT_S).startswith(end)


def test_process_that_only_holds_gpu_memory_does_not_count_as_use(idle: Idle) -> None:
    idle.after(0)
    idle.gpu("0", "4711\n")
    assert idle.after(LIMIT_S).startswith("off")


def test_gpu_without_driver_module_does_not_count_as_use(idle: Idle) -> None:
    """A driver folder of an earlier boot does not mean that the module is loaded."""
    shutil.rmtree(idle.root / "sys")
    idle.after(0)
    idle.gpu("", status=9)
    assert idle.after(LIMIT_S).startswith("off")


UNREAD = (
    "provision: the GPU cannot be read ({}): it counts as used, "
    "so idle_stop does not stop this VM; its time to live does"
)


@pytest.mark.parametrize(
    ("percents", "apps", "status", "why"),
    [
        ("99", "", 9, "nvidia-smi ended with 9"),
        ("", "", 0, "nvidia-smi prints nothing"),
        ("0\n[Unknown Error]", "", 0, "nvidia-smi prints: [Unknown Error]"),
        ("[GPU requires reset]\n[N/A]", "", 0, "nvidia-smi prints: [GPU requires reset]"),
        ("No devices were found", "", 0, "nvidia-smi prints: No devices were found"),
    ],
)
def test_unreadable_gpu_counts_as_use(
    idle: Idle, percents: str, apps: str, status: int, why: str
) -> None:
    idle.after(0)
    assert idle.output == []
    idle.gpu(percents, apps, status=status)
    assert (idle.after(LIMIT_S), idle.output) == ("on", [UNREAD.format(why)])
    idle.gpu("0")
    assert (idle.after(MINUTE), idle.output) == ("on", ["provision: the GPU can be read again"])
    assert idle.after(LIMIT_S - 2 * MINUTE) == "on"
    assert idle.after(MINUTE).startswith("off"), "the VM counts as used until the GPU can be read"
    assert idle.output == []


def test_busy_gpu_beside_unreadable_one_is_not_reported_as_unreadable(idle: Idle) -> None:
    idle.gpu("[Unknown Error]\n7")
    assert (idle.after(0), idle.output) == ("on", [])


def test_unreadable_gpu_is_reported_once_an_hour(idle: Idle) -> None:
    idle.gpu("", status=15)
    output = []
    for _ in range(5):
        assert idle.after(30 * MINUTE) == "on"
        output.append(len(idle.output))
    assert output == [1, 0, 1, 0, 1]


def test_missing_nvidia_smi_with_loaded_driver_counts_as_use(idle: Idle) -> None:
    (idle.root / "var/lib/nvidia/bin/nvidia-smi").unlink()
    assert (idle.after(0), idle.output) == ("on", [UNREAD.format("nvidia-smi ended with 127")])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hangs", "ignores signals", "cannot be killed"])
def test_hanging_nvidia_smi_counts_as_use(idle: Idle, way: str) -> None:
    """A process in an uninterruptible call survives SIGKILL, so the script does not wait for it."""
    idle.after(0)
    idle.gpu(
        "0",
        then={
            "hangs": "exec sleep 30",
            "ignores signals": "trap '' TERM; sleep 30 & wait; wait",
        }.get(way, ""),
    )
    if way == "cannot be killed":
        idle.says_otherwise("timeout -k 1 1 ", "sleep 30 >/dev/null; ")
    started = time.monotonic()
    assert idle.after(LIMIT_S) == "on"
    assert time.monotonic() - started < 10
    (output,) = idle.output
    assert output.startswith("provision: the GPU cannot be read (nvidia-smi ended with 1"), output
    if way == "cannot be killed":
        idle.says_otherwise("sleep 30 >/dev/null; ", "timeout -k 1 1 ")
    idle.gpu("0")
    assert (idle.after(LIMIT_S - MINUTE), idle.output) == (
        "on",
        ["provision: the GPU can be read again"],
    )
    assert idle.after(MINUTE).startswith("off")


@pytest.mark.parametrize(("read_s", "written_s"), [(10, 9000), (9000, 10)])
def test_terminal_input_and_output_count_as_use(
    idle: Idle, read_s: float, written_s: float
) -> None:
    idle.after(0)
    idle.terminal(0, read_s=9000, written_s=9000)
    idle.terminal(1, read_s=read_s, written_s=written_s)
    assert idle.after(LIMIT_S) == "on"
    idle.terminal(1, read_s=LIMIT_S - 30, written_s=9000)
    assert idle.after(LIMIT_S) == "on"
    idle.terminal(1, read_s=LIMIT_S + 30, written_s=9000)
    assert idle.after(LIMIT_S).startswith("off")


def test_silent_shell_does_not_count_as_use(idle: Idle) -> None:
    idle.after(0)
    idle.terminal(0, read_s=LIMIT_S, written_s=LIMIT_S)
    idle.process("-bash")
    assert idle.after(LIMIT_S).startswith("off")


def test_clock_set_back_counts_as_use(idle: Idle) -> None:
    idle.after(0)
    idle.terminal(0, read_s=-5000, written_s=-5000)
    assert idle.after(LIMIT_S) == "on"


def test_running_script_of_provision_counts_as_use(idle: Idle) -> None:
    """The command line of dev.run, dev.exec and of every exchange, with and without sudo."""
    for become in ("none", "sudo"):
        command, _stdin = script_command(script("sleep 1000"), become=become)
        idle.after(0)
        idle.process(*shlex.split(command.removeprefix("exec ")))
        assert idle.after(2 * LIMIT_S) == "on"
        shutil.rmtree(idle.root / "proc" / str(100 + idle.processes))
        assert idle.after(LIMIT_S).startswith("off")


def test_open_ide_connection_does_not_count_as_use(idle: Idle) -> None:
    idle.after(0)
    idle.process("sshd: provision@notty")
    idle.process("sh", "-c", "exec 3<&0 </dev/null; not ours")
    idle.process(
        "/home/provision/.vscode-server/bin/node",
        "--max-old-space-size=2048",
        "server-main.js",
        "--connection-token=x",
    )
    idle.process("python", "-m", "ipykernel_launcher", "-f", "kernel.json")
    assert idle.after(LIMIT_S).startswith("off")


def test_boot_counts_as_use(idle: Idle) -> None:
    idle.boot("activating")
    assert idle.after(0) == "on"
    assert idle.after(2 * LIMIT_S) == "on"
    idle.boot("failed")
    assert idle.after(LIMIT_S).startswith("off")


def test_host_without_gpu_and_terminals_powers_itself_off(idle: Idle) -> None:
    shutil.rmtree(idle.root / "dev/pts")
    shutil.rmtree(idle.root / "var/lib/nvidia")
    shutil.rmtree(idle.root / "sys")
    assert idle.after(0) == "on"
    assert idle.after(LIMIT_S).startswith("off")


def test_empty_record_of_last_use_counts_as_use(idle: Idle) -> None:
    idle.after(0)
    (idle.root / "run/provision/last-used").write_text("")
    assert idle.after(LIMIT_S) == "on"


@pytest.mark.lint
def test_shellcheck_accepts_the_script(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.defpath}")
    if shellcheck is None:
        pytest.skip("shellcheck is part of the development lock file")
    file = tmp_path / "idle.sh"
    file.write_text(idle_texts(Settings.model_validate({"idle_stop": "45m"}), None)["script"])
    done = subprocess.run([shellcheck, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    files = idle_texts(Settings.model_validate({"idle_stop": "45m"}), None)
    for name in ("service", "timer"):
        (tmp_path / f"provision-idle.{name}").write_text(files[name])
    words = [
        "systemd-analyze",
        "verify",
        str(tmp_path / "provision-idle.service"),
        str(tmp_path / "provision-idle.timer"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "provision-idle" not in done.stderr, done.stderr
    (tmp_path / "provision-idle.timer").write_text(
        files["timer"].replace("OnBootSec=1min", "OnBootSec=soon")
    )
    assert (
        "provision-idle.timer"
        in subprocess.run(words, capture_output=True, text=True, check=False).stderr
    ), "the check can fail"
