"""The same nine steps by tools of the same kind, each as its experts run it. Their code stands in bench/peers.

Each lives in an environment of its own below .cache/bench, made on first use; a tool that cannot be
installed is left out, and the results say why.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.targets import Target
from bench.tools import HERE, Call, Tool

PEERS = HERE / "peers"
ENVIRONMENTS = HERE.parent / ".cache" / "bench"


def environment(name: str) -> Path:
    """The folder of programs of an environment with what requirements-NAME.txt pins. Raises CalledProcessError."""
    folder = ENVIRONMENTS / name
    wanted = PEERS / f"requirements-{name}.txt"
    made = folder / "made"
    if not made.exists() or made.read_text() != wanted.read_text():
        for command in (
            ["-m", "venv", str(folder)],
            ["-m", "pip", "install", "--quiet", "--requirement", str(wanted)],
        ):
            python = sys.executable if command[1] == "venv" else str(folder / "bin" / "python")
            subprocess.run([python, *command], check=True, capture_output=True, timeout=600)
        made.write_text(wanted.read_text())
    return folder / "bin"


class Pyinfra(Tool):
    """pyinfra: all hosts at once (its own default for up to as many as there are)."""

    name = "pyinfra"

    def __init__(self, folder: Path, targets: Sequence[Target]) -> None:
        super().__init__(folder, targets)
        self.program = environment("pyinfra") / "pyinfra"

    def call(self, count: int) -> Call:
        shared = {
            "ssh_hostname": "127.0.0.1",
            "ssh_user": "root",
            "ssh_key": str(self.shared / "id"),
            "ssh_known_hosts_file": str(self.shared / "known_hosts"),
            "ssh_strict_host_key_checking": "yes",
        }
        hosts = [
            (target.name, {**shared, "ssh_port": target.relay.port})
            for target in self.targets[:count]
        ]
        inventory = self.folder / f"inventory{count}.py"
        inventory.write_text(f"hosts = {hosts!r}\n")
        return Call(
            [
                [
                    str(self.program),
                    "--yes",
                    "--parallel",
                    str(count),
                    str(inventory),
                    str(PEERS / "deploy.py"),
                ]
            ],
            self.env,
        )

    def problem(self, count: int, kind: str, stdout: str) -> str:  # noqa: ARG002 - it tells what it did on standard error
        return ""


class Ansible(Tool):
    """Ansible with pipelining, no facts, one fork for each host, and a connection kept open (its default)."""

    name = "ansible"
    strategy = "linear"
    keeps_connections = True

    def __init__(self, folder: Path, targets: Sequence[Target]) -> None:
        super().__init__(folder, targets)
        self.program = environment("ansible") / "ansible-playbook"

    @property
    def env(self) -> dict[str, str]:
        return {
            **super().env,
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "PATH": f"{self.program.parent}:{super().env['PATH']}",
        }

    def call(self, count: int) -> Call:
        (self.folder / "ansible.cfg").write_text(self._config(count))
        hosts = {
            target.name: {
                "ansible_host": "127.0.0.1",
                "ansible_port": target.relay.port,
                "ansible_python_interpreter": "/usr/bin/python3",
            }
            for target in self.targets[:count]
        }
        inventory = self.folder / f"inventory{count}.yml"
        inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
        return Call(
            [[str(self.program), "-i", str(inventory), str(PEERS / "playbook.yml")]], self.env
        )

    def forget(self) -> None:
        """End the connections that an earlier round kept open."""
        for control in (self.folder / "cp").glob("*"):
            subprocess.run(
                ["ssh", "-o", f"ControlPath={control}", "-O", "exit", "any"],
                capture_output=True,
                check=False,
                timeout=30,
            )

    def problem(self, count: int, kind: str, stdout: str) -> str:
        changed = [int(number) for number in re.findall(r"changed=(\d+)", stdout)]
        wrong = len(changed) != count or any(
            (number == 0) is (kind == "first") for number in changed
        )
        return f"not as expected: changed={changed}" if wrong else ""

    def _config(self, count: int) -> str:
        return f"""\
[defaults]
remote_user = root
private_key_file = {self.shared}/id
forks = {count}
strategy = {self.strategy}
{self._strategy_plugins()}
[ssh_connection]
pipelining = True
control_path_dir = {self.folder}/cp
ssh_args = -F /dev/null -o ControlMaster=auto -o ControlPersist=60s -o UserKnownHostsFile={self.shared}/known_hosts -o IdentityAgent=none
"""

    def _strategy_plugins(self) -> str:
        return ""


class AnsibleMitogen(Ansible):
    """The same playbook with Mitogen's connection and execution, which keeps a Python process on each host."""

    name = "ansible+mitogen"
    strategy = "mitogen_linear"
    keeps_connections = False

    def _strategy_plugins(self) -> str:
        found = next(
            self.program.parent.parent.glob(
                "lib/python*/site-packages/ansible_mitogen/plugins/strategy"
            )
        )
        return f"strategy_plugins = {found}\n"


ALL: tuple[type[Tool], ...] = (Pyinfra, Ansible, AnsibleMitogen)


def available(
    folder: Path, targets: Sequence[Target], kinds: Sequence[type[Tool]]
) -> tuple[list[Tool], dict[str, str]]:
    """The tools that could be set up, and for each of the others the reason."""
    found: list[Tool] = []
    left_out: dict[str, str] = {}
    for kind in kinds:
        try:
            found.append(kind(folder, targets))
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            said = getattr(error, "stderr", None)
            left_out[kind.name] = (
                f"{error}: {said.decode(errors='replace')[-500:]}" if said else str(error)
            )
    return found, left_out
