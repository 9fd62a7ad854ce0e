"""The shells that scripts must run under, each with the utilities it would find on a host."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provision.core.model import Host

STANDINS = Path(__file__).parents[2] / "provision" / "testing" / "standins" / "bin"
NAMES = ("dash", "bash", "busybox")


@dataclass(frozen=True)
class Shell:
    """A shell that is `sh` on its PATH. The PATH of busybox holds no other program."""

    name: str
    path: str
    env: Mapping[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        """The whole environment of a process."""
        return {"PATH": self.path, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent", **self.env, **more}

    def run(
        self, text: str, *words: str, stdin: bytes = b"", timeout_s: float = 60.0, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run shell text as a login shell would: as the argument of `sh -c`."""
        return subprocess.run(
            ["sh", "-c", text, "sh", *words],
            input=stdin,
            capture_output=True,
            env=self.environment(**env),
            timeout=timeout_s,
            check=False,
            executable=shutil.which("sh", path=self.path),
        )

    def host(self, become: str = "none") -> Host:
        """This machine as a host."""
        return Host(name=self.name, address="local", become=become)

    def enter(self, patch: pytest.MonkeyPatch, **more: str) -> None:
        """Give this environment to the processes that this one starts."""
        for key, value in self.environment(**more).items():
            patch.setenv(key, value)


def _make(name: str, folder: Path) -> Shell:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"there is no {name} here")
    sudo = folder / "sudo"
    sudo.write_text('#!/bin/sh\ntest "$1" = -n || exit 1\nshift\nexec "$@"\n')
    sudo.chmod(0o755)
    if name == "busybox":
        applets = subprocess.run(
            [program, "--list"], capture_output=True, text=True, check=True
        ).stdout.split()
        for applet in {*applets, "sh"}:
            (folder / applet).symlink_to(program)
        return Shell(name, str(folder))
    (folder / "sh").symlink_to(program)
    return Shell(name, f"{folder}{os.pathsep}{os.defpath}")


@pytest.fixture(scope="session", params=NAMES)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Each of the shells."""
    return _make(request.param, tmp_path_factory.mktemp(request.param))


@dataclass(frozen=True)
class Scratch:
    """The root folder of a mock host, with stand-ins for what an ordinary user cannot do."""

    shell: Shell
    root: Path
    state: Path
    tools: Path
    """The first folder of its PATH."""

    def enter(self, patch: pytest.MonkeyPatch) -> None:
        """Give this root to the processes that this one starts."""
        self.shell.enter(
            patch,
            PATH=os.pathsep.join([str(self.tools), str(STANDINS), self.shell.path]),
            TOOLS=str(self.tools),
            PROVISION_MOCK_ROOT=str(self.root),
            PROVISION_MOCK_STATE=str(self.state),
            PROVISION_MOCK_SUDO="1",
        )


@pytest.fixture
def scratch(shell: Shell, tmp_path: Path) -> Iterator[Scratch]:
    """A root with an awkward name, on which /var is noexec as on Container-Optimized OS."""
    root, state, tools = tmp_path / "the host's röot", tmp_path / "state", tmp_path / "tools"
    for folder in (
        root / "etc",
        root / "var/lib",
        root / "tmp",
        root / "proc/self",
        state / "faults",
        tools,
    ):
        folder.mkdir(parents=True)
    mounts = [
        ("/", "/dev/dm-0", "ext2", "ro,relatime"),
        ("/var", "/dev/sda1[/var]", "ext4", "rw,nosuid,nodev,noexec,relatime"),
    ]
    (state / "mounts").write_text("".join("\t".join(mount) + "\n" for mount in mounts))
    yield Scratch(shell, root, state, tools)
    subprocess.run(["chmod", "-R", "u+rwX", str(tmp_path)], check=True)
