"""The code-run-code loop: runs side by side, changed trees, and the origin of failures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from provision.commands.dev.down import dev_down
from provision.commands.dev.exec import dev_exec
from provision.commands.dev.run import dev_run
from provision.commands.dev.shell import dev_shell
from provision.commands.dev.up import dev_up
from provision.commands.image.build import image_build
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.copy import vm_copy
from provision.commands.vm.ssh import vm_ssh
from provision.core.errors import HostError, Unreachable, UsageError
from provision.project.project import Project
from provision.settings import Settings
from provision.testing import MockHost

HERE = Targets()
pytestmark = pytest.mark.timeout(120)


class Loop:
    """A project, and a mock host named in its settings."""

    def __init__(self, folder: Path, *hosts: MockHost) -> None:
        self.folder = folder / "my project"
        self.folder.mkdir()
        subprocess.run(["git", "init", "-q", str(self.folder)], check=True)
        self.state = folder / "state"
        named = {f"box{number}": _settings_of(host) for number, host in enumerate(hosts)}
        self.settings = Settings.model_validate({"name": "box0", "hosts": named})

    def project(self) -> tuple[Project, bytearray]:
        """A session, and what the user's program prints in it."""
        out = bytearray()
        project = Project(
            self.settings,
            self.state,
            self.folder,
            stdout=out.extend,
            stderr=out.extend,
            environ=dict(os.environ),
        )
        return project, out

    def run(self, file: str, *words: str) -> str:
        """`dev.run` with status 0: what it printed."""
        project, out = self.project()
        assert dev_run(project, HERE, file, words).exit_code == 0, out.decode()
        return out.decode()

    def exec(self, *words: str) -> TaskResult:
        """`dev.exec`."""
        return dev_exec(self.project()[0], HERE, words)


def _settings_of(mock: MockHost) -> dict[str, object]:
    host = mock.host
    found = {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "identity": str(host.identity),
        "host_key": host.host_key,
    }
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture
def loop(tmp_path: Path, cos: MockHost) -> Loop:
    """A project whose container runs."""
    made = Loop(tmp_path, cos)
    project, _ = made.project()
    assert image_build(project, HERE).exit_code == 0
    assert dev_up(project, HERE).exit_code == 0
    return made


@pytest.fixture
def on_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A file that is this process's standard input."""
    path = tmp_path / "typed"
    path.write_text("")
    saved = os.dup(0)
    fd = os.open(path, os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)
    monkeypatch.setattr(sys, "stdin", os.fdopen(0, closefd=False))
    monkeypatch.setattr(sys, "__stdin__", sys.stdin)
    yield path
    os.dup2(saved, 0)
    os.close(saved)


@pytest.mark.slow
def test_dev_run_sends_changes_and_dev_shell_returns_status(
    loop: Loop, on_stdin: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _two_at_once(loop)
    _shapes(loop)
    _ignored(loop)
    _links(loop)
    _shell(loop, on_stdin, capfd)


def _two_at_once(loop: Loop) -> None:
    names = [f"part{number}.txt" for number in range(40)]
    for name in names:
        (loop.folder / name).write_text(name)
    (loop.folder / "count.sh").write_text("ls part*.txt | wc -l\n")
    assert loop.run("count.sh").split() == ["40"]
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            assert [out.split() for out in pool.map(lambda _: loop.run("count.sh"), range(4))] == [
                ["40"]
            ] * 4


def _links(loop: Loop) -> None:
    (loop.folder / "data").symlink_to("/mnt/disks/data")
    (loop.folder / "links.sh").write_text("readlink data\n")
    assert loop.run("links.sh") == "/mnt/disks/data\n"


def _shapes(loop: Loop) -> None:
    show = loop.folder / "show.sh"
    show.write_text("cat thing thing/x 2>/dev/null || :\n")
    thing = loop.folder / "thing"
    thing.write_text("a file")
    assert loop.run("show.sh") == "a file"
    thing.unlink()
    thing.mkdir()
    (thing / "x").write_text("in a folder")
    assert loop.run("show.sh") == "in a folder"
    (thing / "x").unlink()
    thing.rmdir()
    thing.write_text("a file again")
    assert loop.run("show.sh") == "a file again"


def _ignored(loop: Loop) -> None:
    (loop.folder / ".gitignore").write_text("secret*.py\n")
    (loop.folder / "secret it's.py").write_text("")
    with pytest.raises(UsageError, match="would not be sent") as caught:
        loop.run("secret it's.py")
    assert "git ignores it" in caught.value.why
    subprocess.run(caught.value.fix, shell=True, check=True)
    assert loop.run("secret it's.py") == ""


def _shell(loop: Loop, typed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project, _ = loop.project()
    for status in (0, 7, 125, 255):
        typed.write_text(f"cat show.sh; exit {status}\n")
        os.lseek(0, 0, os.SEEK_SET)
        done = dev_shell(project, HERE)
        assert (done.exit_code, done.document["failed_in"]) == (
            status,
            "program" if status else None,
        )
        assert "cat thing" in capfd.readouterr().out
    assert dev_down(project, HERE).exit_code == 0
    with pytest.raises(HostError, match="the worker container is not running") as caught:
        dev_shell(project, HERE)
    assert caught.value.fix.endswith("dev.up")
    with pytest.raises(HostError, match="the worker container is not running"):
        loop.run("show.sh")


def test_unreachable_host_is_not_reported_as_program_status(tmp_path: Path, on_stdin: Path) -> None:
    with MockHost() as mock:
        loop = Loop(tmp_path, mock)
        project, _ = loop.project()
        assert vm_ssh(project, HERE, ["sh", "-c", "exit 255"]).exit_code == 255
    entries: list[Callable[[], TaskResult]] = [
        lambda: vm_ssh(project, HERE, ["true"]),
        lambda: dev_shell(project, HERE),
    ]
    for enter in entries:
        with pytest.raises(Unreachable, match="ssh could not reach the host") as caught:
            enter()
        assert caught.value.where == "box0"
        assert "refused" in caught.value.why


def test_copy_to_several_hosts_reports_failed_ones(tmp_path: Path, cos: MockHost) -> None:
    source = tmp_path / "data"
    source.mkdir()
    (source / "x").write_text("text")
    with MockHost(name="second") as second, MockHost(name="third") as third:
        loop = Loop(tmp_path, cos, second, third)
        second.path("/home/there").parent.mkdir(parents=True, exist_ok=True)
        second.path("/home/there").write_text("in the way")
        project, _ = loop.project()
        everywhere = Targets(limit="box*")
        done = vm_copy(project, everywhere, str(source), "/home/there")
        assert done.exit_code == 1
        assert [each["host"] for each in done.document["copied"]] == ["box0", "box2"]
        assert [done.document["hosts"][name]["failed"] for name in ("box0", "box1", "box2")] == [
            0,
            1,
            0,
        ]
        assert "copying" in done.document["error"]["what"]
        for host in (cos, third):
            assert host.path("/home/there/data/x").read_text() == "text"

        second.path("/home/there").unlink()
        cos.path("/home/there/data/x").unlink()
        cos.path("/home/there/data").rmdir()
        cos.path("/home/there").rmdir()
        cos.path("/home/there").write_text("in the way")
        stopped = vm_copy(
            project, replace(everywhere, forks=1, max_fail=0), str(source), "/home/there"
        )
        assert stopped.exit_code == 1
        assert stopped.document["copied"] == []
        assert stopped.document["not_started"] == ["box1", "box2"]


@pytest.mark.slow
def test_dev_run_finds_file_in_current_or_project_folder(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project, _ = loop.project()
    (loop.folder / "deep er").mkdir()
    (loop.folder / "deep er/it's.py").write_text("import sys; print(sys.argv[0])")
    (loop.folder / "top.py").write_text("print('top')")
    (tmp_path / "outside.py").write_text("print('outside')")
    dev_up(project, HERE)
    monkeypatch.chdir(loop.folder / "deep er")
    assert [loop.run(name) for name in ("it's.py", "deep er/it's.py", "../top.py", "top.py")] == [
        "deep er/it's.py\n"
    ] * 2 + ["top\n"] * 2
    with pytest.raises(UsageError, match="must lie in the project"):
        loop.run(str(tmp_path / "outside.py"))
    with pytest.raises(UsageError, match="no such file") as raised:
        loop.run("nope.py")
    assert raised.value.why == f"looked in {loop.folder}/deep er and {loop.folder}"
