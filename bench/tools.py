"""The measured tools: how each is called, and the state that a run must leave on a host."""

from __future__ import annotations

import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.targets import Target

HERE = Path(__file__).resolve().parent

# Prints the state after all nine steps; it must be _EXPECTED for every tool and host.
_PRINT_STATE = """
cd /var/lib
stat -c '%n %a' nvidia bench bench/profile.sh bench/limits.conf bench/run.sh bench/container
cat bench/profile.sh bench/limits.conf bench/run.sh bench/container nvidia/bin-version
findmnt -rno OPTIONS -M /var/lib/nvidia | tr ',' '\\n' | grep -c '^noexec$' || true
findmnt -rno TARGET -M /var/lib/nvidia | wc -l
"""
_EXPECTED = """\
nvidia 755
bench 755
bench/profile.sh 644
bench/limits.conf 644
bench/run.sh 755
bench/container 644
export PATH=/var/lib/nvidia/bin:$PATH
* hard nofile 16384
* soft nofile 16384
#!/bin/sh
exec python3 -m worker "$@"
image=worker:1
echo 535.183.01
0
1
"""
_STEPS = 8
"""Resources of the nine steps: the bind mount and the remount are one."""


@dataclass(frozen=True)
class Call:
    """Commands to start at once, and their environment."""

    commands: Sequence[Sequence[str]]
    env: Mapping[str, str]


class Tool(ABC):
    """A tool that does the job, or for the floor nothing, on the first `count` hosts."""

    name: str
    converges = True
    keeps_connections = False
    """A background process keeps connections, which a second run uses."""

    def __init__(self, folder: Path, targets: Sequence[Target]) -> None:
        self.folder = folder / self.name
        self.targets = targets
        self.shared = folder
        self.folder.mkdir()

    @property
    def env(self) -> dict[str, str]:
        """An environment with a home of its own, without the developer's configuration."""
        return {
            "HOME": str(self.folder),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }

    @abstractmethod
    def call(self, count: int) -> Call:
        """The commands of one run."""

    def reset(self) -> None:  # noqa: B027 - most keep no state
        """Remove the state of earlier runs on the controller."""

    def problem(self, count: int, kind: str, stdout: str) -> str:  # noqa: ARG002 - the base case
        """What is wrong with the output of a successful run; empty: nothing."""
        return ""


class Floor(Tool):
    """`ssh HOST true`, one process per host, all at once."""

    name = "ssh true"
    converges = False

    def call(self, count: int) -> Call:
        config = str(self.shared / "ssh_config")
        return Call(
            [["ssh", "-F", config, target.name, "true"] for target in self.targets[:count]],
            self.env,
        )


class Ours(Tool):
    """`provision vm.provision` with the GPU host's recipe (without GPU) and the nine steps."""

    name = "provision"

    def __init__(self, folder: Path, targets: Sequence[Target]) -> None:
        super().__init__(folder, targets)
        self.program = Path(sys.executable).with_name("provision")
        shutil.copy(HERE / "job" / "nine_steps.py", self.folder)
        hosts = {
            target.name: {
                "address": "127.0.0.1",
                "port": target.relay.port,
                "user": "root",
                "identity": str(self.shared / "id"),
                "host_key": target.host_key,
                "become": "none",
            }
            for target in targets
        }
        settings = {"provision": {"gpu": "none", "recipes": ["nine_steps:recipe"], "hosts": hosts}}
        # JSON is YAML in flow style
        (self.folder / "invoke.yaml").write_text(json.dumps(settings, indent=1))

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "XDG_STATE_HOME": str(self.folder / "state")}

    def call(self, count: int) -> Call:
        names = ",".join(target.name for target in self.targets[:count])
        return Call([[str(self.program), "vm.provision", "--limit", names, "--json"]], self.env)

    def reset(self) -> None:
        shutil.rmtree(self.folder / "state", ignore_errors=True)

    def problem(self, count: int, kind: str, stdout: str) -> str:
        hosts: dict[str, Any] = json.loads(stdout)["hosts"]
        wrong = [
            name
            for name, host in hosts.items()
            if (host["changed"] >= _STEPS) is (kind == "no-change")
        ]
        return f"not as expected: {hosts}" if wrong or len(hosts) != count else ""


def find_problem(target: Target) -> str:
    """What is wrong with a host's state after a run; empty: nothing."""
    seen = target.inside(_PRINT_STATE)
    return "" if seen == _EXPECTED else f"{target.name} is left as\n{seen}"
