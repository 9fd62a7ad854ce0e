"""Other tools that do the same nine steps, each configured as its experts do; see bench/peers.

Each has a virtual environment below .cache/bench, created on first use. A tool that cannot be
installed is left out, and the results have the reason.
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
    """The bin folder of an environment with requirements-NAME.txt. Raises `CalledProcessError`."""
    folder = ENVIRONMENTS / name
    requirements = PEERS / f"requirements-{name}.txt"
    stamp = folder / "made"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        for command in (
            ["-m", "venv", str(folder)],
            ["-m", "pip", "install", "--quiet", "--requirement", str(requirements)],
        ):
            python = sys.executable if command[1] == "venv" else str(folder / "bin" / "python")
            subprocess.run([python, *command], check=True, capture_output=True, timeout=600)
        stamp.write_text(requirements.read_text())
    return folder / "bin"


class Pyinfra(Tool):
    """pyinfra with all hosts in parallel."""

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

    def problem(self, count: int, kind: str, stdout: str) -> str:  # noqa: ARG002 - it reports on standard error
        return ""


class Ansible(Tool):
    """Ansible with pipelining, no facts, one fork per host, and persistent connections."""

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

    def reset(self) -> None:
        """End the connections that an earlier run kept open."""
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
        ssh_arguments = (
            "-F /dev/null -o ControlMaster=auto -o ControlPersist=60s",
            f"-o UserKnownHostsFile={self.shared}/known_hosts -o IdentityAgent=none",
        )
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
ssh_args = {" ".join(ssh_arguments)}
"""

    def _strategy_plugins(self) -> str:
        return ""


class AnsibleMitogen(Ansible):
    """The same playbook with Mitogen, which keeps a Python process on each host."""

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
    """(the tools that could be installed, the reason for each other tool by name)."""
    found: list[Tool] = []
    left_out: dict[str, str] = {}
    for kind in kinds:
        try:
            found.append(kind(folder, targets))
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            output = getattr(error, "stderr", None)
            left_out[kind.name] = (
                f"{error}: {output.decode(errors='replace')[-500:]}" if output else str(error)
            )
    return found, left_out
