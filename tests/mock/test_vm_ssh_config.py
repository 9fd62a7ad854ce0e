"""The fragment of `vm.ssh-config`, included from the configuration of the system's ssh."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.commands.inventory.ansible import inventory_ansible
from provision.commands.vm.ssh_config import vm_ssh_config
from provision.project.project import Project
from provision.settings.model import HostSettings
from provision.testing import MockHost
from tests.mock.workspace import Workspace

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="this machine has no ssh"),
]


@pytest.fixture
def near(workspace: Workspace) -> Iterator[Workspace]:
    """A project with a short state folder: the path of pytest's own is too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="my home ", dir="/tmp") as home:
        workspace.state_dir = Path(home) / "state" / "provision"
        yield workspace


def fragment(workspace: Workspace, home: str = "/nonexistent") -> str:
    project = workspace.project
    quiet = Project(
        project.settings,
        project.state_dir,
        project.project_dir,
        emit=project.emit,
        environ={"HOME": home},
    )
    return str(vm_ssh_config(quiet).document["ssh_config"])


def ssh(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL
    )


def test_included_fragment_shares_connections(near: Workspace, tmp_path: Path) -> None:
    near.create()
    (tmp_path / "of a project").write_text(fragment(near))
    config = tmp_path / "config"
    config.write_text(
        f'Include "{tmp_path / "of a project"}"\n\nHost *\n    Port 999\n    User somebody\n'
    )
    before = near.cloud.host("dev").stats.connections
    try:
        for _ in range(2):
            done = ssh(config, "dev", "hostname")
            assert (done.returncode, done.stdout) == (0, "dev\n"), done.stderr
        assert ssh(config, "-O", "check", "dev").returncode == 0
        assert near.cloud.host("dev").stats.connections - before == 1
        (socket,) = [path for path in near.state_dir.iterdir() if path.is_socket()]
        assert socket.stat().st_mode & 0o077 == 0
    finally:
        ssh(config, "-O", "exit", "dev")


def test_pinned_host_is_known_on_any_port_of_ssh_config(
    workspace: Workspace, tmp_path: Path
) -> None:
    with MockHost(name="desk") as desk:
        where = desk.host
        entry = HostSettings(
            address=where.address, user=where.user, identity=where.identity, host_key=where.host_key
        )
        workspace.settings = workspace.settings.model_copy(update={"hosts": {"desk": entry}})
        config = tmp_path / "config"
        config.write_text(f"{fragment(workspace)}\nHost *\n    Port {where.port}\n")
        done = ssh(config, "desk", "hostname")
        assert (done.returncode, done.stdout) == (0, "desk\n"), done.stderr
        reported = json.loads(inventory_ansible(workspace.project).text)["_meta"]["hostvars"][
            "desk"
        ]
        assert "ansible_port" not in reported
        words = ["-o", f"Port={where.port}", "-o", f"User={where.user}", "-i", str(where.identity)]
        done = ssh(
            Path("none"),
            *words,
            *shlex.split(reported["ansible_ssh_common_args"]),
            reported["ansible_host"],
            "hostname",
        )
        assert (done.returncode, done.stdout) == (0, "desk\n"), done.stderr


@pytest.mark.parametrize("pinned", [True, False])
def test_aliased_host_is_reached_by_its_own_name(
    workspace: Workspace, tmp_path: Path, *, pinned: bool
) -> None:
    """`ssh desk` reads no block of the alias, which alone has HostName, port, user and key."""
    with MockHost(name="desk") as desk:
        where = desk.host
        alias = (
            f"Host far\n  HostName {where.address}\n  Port {where.port}\n"
            f"  User {where.user}\n  IdentityFile {where.identity}\n"
        )
        known = tmp_path / "known"
        known.write_text(f"[{where.address}]:{where.port} {where.host_key}\n")
        home = tmp_path / "home"
        (home / ".ssh").mkdir(parents=True)
        entry = HostSettings(address="far", host_key=where.host_key if pinned else None)
        workspace.settings = workspace.settings.model_copy(
            update={"hosts": {"desk": entry, "far": entry}}
        )
        config = home / ".ssh" / "config"
        config.write_text(alias if pinned else f"{alias}  UserKnownHostsFile {known}\n")
        for _ in range(2):  # also when what was printed before is included
            (home / "printed").write_text(fragment(workspace, str(home)))
            config.write_text(
                f"Include {home}/printed\n{alias}"
                + ("" if pinned else f"  UserKnownHostsFile {known}\n")
            )
            for name in ("desk", "far"):
                done = ssh(config, "-o", "ControlPath=none", name, "hostname")
                assert (done.returncode, done.stdout) == (0, "desk\n"), done.stderr


def test_folder_writable_by_others_gets_no_sockets(near: Workspace) -> None:
    near.create()
    assert "ControlPath" in fragment(near)
    near.state_dir.chmod(0o777)
    assert "ControlPath" not in fragment(near)


def test_too_long_socket_path_disables_shared_connections(workspace: Workspace) -> None:
    workspace.state_dir = workspace.state_dir / ("d" * 60)
    workspace.create()
    assert "ControlPath" not in fragment(workspace)
