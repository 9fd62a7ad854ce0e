"""A VM without an external address, reached through a tunnel of the stand-in for gcloud."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from provision.commands.shared import host_access
from provision.commands.shared.targets import Targets
from provision.commands.vm.provision import vm_provision
from provision.commands.vm.ssh import vm_ssh
from provision.commands.vm.ssh_config import vm_ssh_config
from provision.core.errors import EXIT_UNREACHABLE, TunnelRefused, Unreachable
from provision.core.model import Host
from provision.core.shell import command
from provision.hosts.ssh import terminal
from provision.project.mock import ProjectMock
from provision.testing import gcloud
from tests.mock.workspace import ZONE, Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


@pytest.fixture
def tunnelled(workspace: Workspace) -> Workspace:
    """A project that reaches its VMs through tunnels."""
    workspace.settings = workspace.settings.model_copy(update={"ssh": "iap"})
    folder(workspace).mkdir(parents=True)
    (folder(workspace) / gcloud.RECORD).write_text(
        json.dumps({"compute_endpoint": workspace.cloud.endpoint})
    )
    return workspace


def folder(workspace: Workspace) -> Path:
    return workspace.project.home / "mock"


def failures_left(workspace: Workspace) -> list[str]:
    return (folder(workspace) / "iap-failures").read_text().split()


def test_vm_without_external_address_is_provisioned_through_tunnel(
    tunnelled: Workspace,
) -> None:
    made = tunnelled.create()
    assert made.exit_code == 0
    (instance,) = tunnelled.cloud.emulator.instances("mock-project")
    assert "accessConfigs" not in instance["networkInterfaces"][0]
    target = host_access.resolve_host(tunnelled.project, Targets(host="dev"))
    assert target.address == instance["networkInterfaces"][0]["networkIP"]
    words = (
        "compute",
        "start-iap-tunnel",
        "dev",
        "22",
        "--listen-on-stdin",
        "--project",
        "mock-project",
        "--zone",
        ZONE,
    )
    assert target.proxy == (
        str(folder(tunnelled).resolve() / "gcloud"),
        *words,
        "--verbosity=error",
    )
    again = tunnelled.create()
    assert (again.exit_code, again.document["changed"]) == (0, False)


def test_transient_tunnel_codes_are_retried(tunnelled: Workspace) -> None:
    gcloud.fail(folder(tunnelled), 4047, 4033, 4003, 4003)
    assert tunnelled.create().exit_code == 0
    assert failures_left(tunnelled) == []


@pytest.mark.parametrize(
    ("code", "what", "fix"),
    [
        (
            4003,
            "nothing answers at the end of the tunnel",
            "gcloud compute firewall-rules create allow-iap-ssh --network default --allow tcp:22 ",
        ),
        (4033, "you may not open tunnels to this VM", "--role roles/iap.tunnelResourceAccessor"),
        (4047, "the tunnel does not find the VM", "invoke vm.show --name dev"),
        (4054, "a policy of the organisation forbids the tunnel", "or set provision.ssh: direct"),
    ],
)
def test_lasting_tunnel_code_is_explained(
    tunnelled: Workspace, code: int, what: str, fix: str
) -> None:
    tunnelled.create()
    gcloud.fail(folder(tunnelled), *[code] * 50)
    with pytest.raises(Unreachable) as caught:
        tunnelled.create(ssh_s=5)  # more than one try, also on a busy machine
    assert (caught.value.exit_code, caught.value.where) == (EXIT_UNREACHABLE, "dev")
    assert caught.value.what.startswith(what)
    assert fix in caught.value.fix
    assert f"Error while connecting [{code}: " in caught.value.why
    tried = 50 - len(failures_left(tunnelled))
    assert tried == 1 if code == 4054 else tried > 1


def test_tunnel_to_stopped_vm_reports_that_it_is_stopped(tunnelled: Workspace) -> None:
    tunnelled.create()
    tunnelled.stop()
    done = vm_provision(tunnelled.project, Targets(check=True))
    assert done.exit_code == EXIT_UNREACHABLE
    error = done.document["hosts"]["dev"]["error"]
    assert (error["what"], error["fix"]) == ("the VM does not run", "invoke vm.start --name dev")
    assert "the tunnel does not find the VM: " in error["why"]


def test_missing_gcloud_is_reported_without_retry(
    tunnelled: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnelled.create()
    monkeypatch.setattr(ProjectMock, "gcloud_path", Path("/nowhere/gcloud"))
    with pytest.raises(TunnelRefused, match="gcloud is not installed") as caught:
        tunnelled.create()
    assert "/nowhere/gcloud" in caught.value.why
    assert "set provision.ssh: direct" in caught.value.fix


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="this machine has no ssh")


@needs_ssh
def test_system_ssh_uses_the_tunnel(tunnelled: Workspace, tmp_path: Path) -> None:
    tunnelled.create()
    config = tmp_path / "config"
    config.write_text(vm_ssh_config(tunnelled.project).document["ssh_config"])
    words = [
        "ssh",
        "-F",
        str(config),
        "-o",
        "ControlMaster=no",
        "-o",
        "ControlPath=none",
        "dev",
        "hostname",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "dev\n", "")


@needs_ssh
def test_vm_ssh_uses_the_tunnel(tunnelled: Workspace) -> None:
    tunnelled.create()
    assert vm_ssh(tunnelled.project, Targets(), ["sh", "-c", "exit 7"]).exit_code == 7
    gcloud.fail(folder(tunnelled), 4054, 4054)
    with pytest.raises(TunnelRefused, match="a policy of the organisation"):
        vm_ssh(tunnelled.project, Targets(), ["true"])


@needs_ssh
def test_missing_gcloud_is_recognised_in_system_ssh_output(tunnelled: Workspace) -> None:
    tunnelled.create()
    target = host_access.resolve_host(tunnelled.project, Targets())
    lost = Host(**{**vars(target), "proxy": ("/nowhere/gcloud", *target.proxy[1:])})

    with pytest.raises(TunnelRefused, match="gcloud is not installed"):
        terminal.run_interactive(
            lost,
            command("true"),
            known_hosts=tunnelled.project.known_hosts,
            environ=os.environ,
        )
