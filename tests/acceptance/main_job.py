"""The main job, from `vm.create` to `vm.delete`, through the commands, on mock or lab."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provision.commands.dev.down import dev_down
from provision.commands.dev.exec import dev_exec
from provision.commands.dev.run import dev_run
from provision.commands.dev.up import dev_up
from provision.commands.image.build import image_build
from provision.commands.image.render import image_render
from provision.commands.mps.disable import mps_disable
from provision.commands.mps.enable import mps_enable
from provision.commands.mps.status import mps_status
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.copy import vm_copy
from provision.commands.vm.create.create import vm_create
from provision.commands.vm.delete import vm_delete
from provision.commands.vm.provision import vm_provision
from provision.commands.vm.show import vm_show
from provision.commands.vm.ssh import vm_ssh
from provision.core.errors import EXIT_WOULD_CHANGE
from provision.core.model import Event, OutputLine
from provision.project.project import Project
from provision.settings import Settings

HERE = Targets()
PROGRAM = """\
import os, pathlib, sys

print("args", sys.argv[1:])
print("threads", os.environ["OMP_NUM_THREADS"])
print("pipe", os.environ["CUDA_MPS_PIPE_DIRECTORY"])
print("stale", pathlib.Path("stale.py").exists())
pathlib.Path("made-by-the-program.txt").write_text("kept")
sys.exit(7)
"""


@dataclass
class World:
    """The environment of the scenario: settings with a host, a project folder, a way to reboot."""

    settings: Settings
    state_dir: Path
    project_dir: Path
    host: str
    reboot: Callable[[], None]
    environ: dict[str, str]
    put_object: Callable[[str, str, bytes], None] | None = None
    """Writes an object into a bucket that the host's toolbox can copy from."""
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    events: list[Event] = field(default_factory=list)

    @property
    def project(self) -> Project:
        """A new project for each command."""
        return Project(
            settings=self.settings,
            state_dir=self.state_dir,
            project_dir=self.project_dir,
            emit=self.events.append,
            stdout=self.stdout.extend,
            stderr=self.stderr.extend,
            environ=self.environ,
        )

    def with_settings(self, **changes: Any) -> World:
        """The same world with other settings."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def program(self, words: Sequence[str]) -> tuple[int, str]:
        """`dev.exec`: status and standard output."""
        self.stdout.clear()
        done = dev_exec(self.project, HERE, words)
        return done.exit_code, self.stdout.decode()


def recap(done: TaskResult, host: str) -> dict[str, Any]:
    """The host's part of the document, after a round trip through JSON."""
    return dict(json.loads(json.dumps(done.document))["hosts"][host])


def assert_unchanged(done: TaskResult, host: str) -> None:
    """Assert that everything was verified and nothing changed, in one exchange."""
    found = recap(done, host)
    differing = [
        (result["resource"], result["status"], result["diff"])
        for result in found["results"]
        if result["status"] != "ok"
    ]
    assert differing == []
    assert done.exit_code == 0
    assert found["round_trips"] == 1


def assert_changed(done: TaskResult, host: str, *resources: str) -> dict[str, Any]:
    """Assert that the run succeeded and at least these resources changed; the host's document."""
    found = recap(done, host)
    failed = [
        (result["resource"], result.get("error"))
        for result in found["results"]
        if result["status"] not in {"ok", "changed"}
    ]
    assert failed == []
    assert done.exit_code == 0
    names = {result["resource"] for result in found["results"] if result["status"] == "changed"}
    assert names >= set(resources)
    return found


def walk(world: World) -> None:
    """The whole main job; the second run of each step changes nothing, in one exchange."""
    _create(world)
    _image(world)
    _container(world)
    _code(world)
    _mps(world)
    _reboot(world)
    _end(world)


def _create(world: World) -> None:
    done = vm_create(world.project, world.host, HERE)
    assert_changed(done, world.host)
    assert done.document["vm"]["name"] == world.host
    assert_unchanged(vm_create(world.project, world.host, HERE), world.host)
    assert_unchanged(vm_provision(world.project, HERE), world.host)
    assert vm_show(world.project, world.host).document["vm"]["name"] == world.host
    check = vm_provision(world.project, replace(HERE, check=True))
    assert_unchanged(check, world.host)
    assert vm_ssh(world.project, HERE, ["sh", "-c", "exit 5"]).exit_code == 5
    _copy(world)


def _copy(world: World) -> None:
    """Copy a folder and a bucket to folders whose names need quoting."""
    folder = world.project_dir.parent / "it's a folder"
    folder.mkdir(exist_ok=True)
    (folder / "$(x) ü.txt").write_text("text")
    there = "/home/it's $(there)"
    assert vm_copy(world.project, HERE, str(folder), there).exit_code == 0
    found = (
        'cd "${PROVISION_MOCK_ROOT-}/home/it\'s \\$(there)" && '
        'test "$(cat "it\'s a folder/\\$(x) ü.txt")" = text'
    )
    assert vm_ssh(world.project, HERE, ["sh", "-c", found]).exit_code == 0
    if world.put_object:
        world.put_object("bucket", "gpu/model.bin", b"weights")
        assert vm_copy(world.project, HERE, "gs://bucket/gpu/*", "/home/models").exit_code == 0
        found = 'test "$(cat "${PROVISION_MOCK_ROOT-}/home/models/model.bin")" = weights'
        assert vm_ssh(world.project, HERE, ["sh", "-c", found]).exit_code == 0


def _image(world: World) -> None:
    rendered = image_render(world.project)
    assert 'ENTRYPOINT ["/opt/apache/beam/boot"]' in rendered.text
    found = assert_changed(image_build(world.project, HERE), world.host, "image")
    assert found["round_trips"] == 2
    assert any(
        isinstance(event, OutputLine) and event.text.startswith("Step 1/") for event in world.events
    )
    assert_unchanged(image_build(world.project, HERE), world.host)


def _container(world: World) -> None:
    check = dev_up(world.project, replace(HERE, check=True))
    assert check.exit_code == EXIT_WOULD_CHANGE
    status = {
        result["resource"]: result["status"] for result in recap(check, world.host)["results"]
    }
    assert status["container"] == "changed"
    assert status["image"] == "ok"
    assert status["mps-as-chosen"] == "unknown"  # it depends on a container that would change

    assert_changed(dev_up(world.project, HERE), world.host, "container", "worker-steps")
    assert_unchanged(dev_up(world.project, HERE), world.host)

    other = world.with_settings(
        worker=world.settings.worker.model_copy(update={"env": {"MARK": "it's other"}})
    )
    assert_changed(dev_up(other.project, HERE), world.host, "container")
    assert world.program(["printenv", "MARK"]) == (0, "it's other\n")
    assert_changed(dev_up(world.project, HERE), world.host, "container")


def _code(world: World) -> None:
    assert world.program(["sh", "-c", 'printf %s "it\'s $0"; exit 3', "a 'b' $(c)\n€"]) == (
        3,
        "it's a 'b' $(c)\n€",
    )
    status, output = world.program(
        ["sh", "-c", 'echo "$LD_LIBRARY_PATH:$PATH:$TF_FORCE_GPU_ALLOW_GROWTH"; ulimit -n']
    )
    assert status == 0
    assert output.startswith("/usr/local/nvidia/lib64")
    assert "/usr/local/nvidia/bin" in output
    assert ":true\n16384" in output
    status, output = world.program(["nvidia-smi", "-L"])
    assert (status, output[:6]) == (0, "GPU 0:")

    (world.project_dir / "train me.py").write_text(PROGRAM)
    (world.project_dir / "stale.py").write_text("")
    (world.project_dir / ".gitignore").write_text("ignored.bin\n")
    (world.project_dir / "ignored.bin").write_text("x")
    assert "stale True" in _run(world)
    (world.project_dir / "stale.py").unlink()
    assert "stale False" in _run(world)
    assert (
        world.program(
            ["sh", "-c", "cat made-by-the-program.txt; ls ignored.bin 2>&1 | grep -c 'No such'"]
        )[1]
        == "kept1\n"
    )


def _run(world: World) -> str:
    world.stdout.clear()
    done = dev_run(world.project, HERE, "train me.py", ["--lr", "it's 0.1"])
    output = world.stdout.decode()
    assert (done.exit_code, done.document["failed_in"]) == (7, "program")
    assert """args ['--lr', "it's 0.1"]""" in output
    assert "threads 1\n" in output
    assert "pipe /run/mps/pipe\n" in output
    return output


def _mps(world: World) -> None:
    assert mps_status(world.project, HERE).document["daemon"] is False
    mode = mps_status(world.project, HERE).document["compute_mode"]
    assert_changed(mps_enable(world.project, HERE), world.host, "mps", "mps-steps")
    assert_unchanged(mps_enable(world.project, HERE), world.host)
    status = mps_status(world.project, HERE)
    assert status.exit_code == 0
    assert status.document["daemon"] is True
    assert status.document["server"]["state"] == "ACTIVE"
    assert status.document["compute_mode"] == mode
    assert_unchanged(dev_up(world.project, HERE), world.host)


def _reboot(world: World) -> None:
    """After a reboot the boot script has restored everything, and the probes find no difference."""
    world.reboot()
    assert_unchanged(dev_up(world.project, HERE), world.host)
    assert mps_status(world.project, HERE).document["server"]["state"] == "ACTIVE"


def _end(world: World) -> None:
    mode = mps_status(world.project, HERE).document["compute_mode"]
    assert_changed(mps_disable(world.project, HERE), world.host, "mps", "mps-steps")
    assert_unchanged(mps_disable(world.project, HERE), world.host)
    assert mps_status(world.project, HERE).document["compute_mode"] == mode
    assert (
        world.program(["sh", "-c", "ls -d /run/mps/pipe /run/mps/log 2>/dev/null | wc -l"])[
            1
        ].strip()
        == "0"
    )
    assert_changed(dev_down(world.project, HERE), world.host, "container", "worker-steps")
    assert_unchanged(dev_down(world.project, HERE), world.host)
    assert vm_delete(world.project, world.host, yes=True, confirm=None).exit_code == 0
