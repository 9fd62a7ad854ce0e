"""Emulator and hosts together, and the background process that keeps them between commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from provision.core.errors import ProvisionError
from provision.testing import MockCloud, MockHost, background, process_start
from provision.testing.mock_cloud import authorized_keys
from provision.testing.ssh.keys import load_or_make_key, public_line
from tests.mock.plain_client import ask, connect, eventually

ZONE = "us-central1-a"


def client_of(endpoint: str) -> compute_v1.InstancesClient:
    return compute_v1.InstancesClient(
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": endpoint},
        transport="rest",
    )


def body(name: str, machine: str = "g2-standard-8", **metadata: str) -> compute_v1.Instance:
    """The body of an insert of a GPU VM."""
    disk = compute_v1.AttachedDiskInitializeParams(
        source_image="projects/cos-cloud/global/images/family/cos-125-lts", disk_size_gb=100
    )
    return compute_v1.Instance(
        name=name,
        machine_type=f"zones/{ZONE}/machineTypes/{machine}",
        scheduling=compute_v1.Scheduling(on_host_maintenance="TERMINATE", automatic_restart=True),
        disks=[compute_v1.AttachedDisk(boot=True, auto_delete=True, initialize_params=disk)],
        network_interfaces=[
            compute_v1.NetworkInterface(
                access_configs=[compute_v1.AccessConfig(type_="ONE_TO_ONE_NAT", name="nat")]
            )
        ],
        metadata=compute_v1.Metadata(
            items=[
                compute_v1.Items(key=key.replace("_", "-"), value=value)
                for key, value in metadata.items()
            ]
        ),
    )


def insert(endpoint: str, name: str, **metadata: str) -> compute_v1.Instance:
    client = client_of(endpoint)
    client.insert_unary(project="p", zone=ZONE, instance_resource=body(name, **metadata))

    def running() -> bool:
        return bool(client.get(project="p", zone=ZONE, instance=name).status == "RUNNING")

    assert eventually(running)
    return client.get(project="p", zone=ZONE, instance=name)


@pytest.fixture
def key(tmp_path: Path) -> tuple[str, str]:
    """A private key's path and its public line."""
    path = tmp_path / "id"
    return str(path), public_line(load_or_make_key(path))


def test_host_has_gpu_count_of_instance(mock_cloud: MockCloud, key: tuple[str, str]) -> None:
    insert(mock_cloud.endpoint, "dev", machine="g2-standard-24", ssh_keys=f"ed:{key[1]}")
    host = mock_cloud.host("dev")
    host.identity = key[0]
    with connect(host) as client:
        ask(client, "sudo cos-extensions install gpu")
        assert (
            ask(client, "ls $PROVISION_MOCK_ROOT/dev | grep '^nvidia[0-9]'").out
            == "nvidia0\nnvidia1\n"
        )


def test_running_instance_has_ssh_host(mock_cloud: MockCloud, key: tuple[str, str]) -> None:
    instance = insert(
        mock_cloud.endpoint,
        "dev",
        ssh_keys=f"ed:{key[1]} ed@laptop",
        enable_guest_attributes="TRUE",
    )
    assert instance.network_interfaces[0].access_configs[0].nat_i_p == "127.0.0.1"
    host = mock_cloud.host("dev")
    host.identity = key[0]
    with connect(host) as client:
        assert (
            ask(client, "id -un; hostname; cat ~/.ssh/authorized_keys").out
            == f"ed\ndev\n{key[1]} ed@laptop\n"
        )
        assert "NVIDIA L4" in ask(client, "sudo cos-extensions install gpu").err
    request = compute_v1.GetGuestAttributesInstanceRequest(
        project="p", zone=ZONE, instance="dev", query_path="hostkeys/"
    )
    (item,) = client_of(mock_cloud.endpoint).get_guest_attributes(request).query_value.items
    assert f"{item.key} {item.value}" == host.host.host_key


def test_guest_attributes_and_console_reach_api(
    mock_cloud: MockCloud, key: tuple[str, str]
) -> None:
    data = "#cloud-config\nruncmd:\n  - [echo, hello console]\n"
    insert(
        mock_cloud.endpoint,
        "dev",
        ssh_keys=f"ed:{key[1]}",
        enable_guest_attributes="TRUE",
        user_data=data,
    )
    client = client_of(mock_cloud.endpoint)
    assert eventually(
        lambda: (
            "hello console"
            in client.get_serial_port_output(project="p", zone=ZONE, instance="dev").contents
        )
    )
    url = "http://metadata.google.internal/computeMetadata/v1/instance/guest-attributes"
    mock_cloud.host("dev").run(
        f"curl -sf -X PUT -H 'Metadata-Flavor: Google' --data done {url}/provision/state"
    )
    request = compute_v1.GetGuestAttributesInstanceRequest(
        project="p", zone=ZONE, instance="dev", query_path="provision/"
    )

    def published() -> bool:
        return {"state": "done"}.items() <= {
            item.key: item.value for item in client.get_guest_attributes(request).query_value.items
        }.items()

    assert eventually(published)


def test_reboot_command_reboots_host(mock_cloud: MockCloud, key: tuple[str, str]) -> None:
    insert(mock_cloud.endpoint, "dev", ssh_keys=f"ed:{key[1]}")
    host = mock_cloud.host("dev")
    before = host.path("/proc/sys/kernel/random/boot_id").read_text()
    assert host.run("reboot").status == 1, "the user is not root"
    assert host.run("sudo reboot").status == 0
    boot_id = host.path("/proc/sys/kernel/random/boot_id")
    assert eventually(lambda: boot_id.exists() and boot_id.read_text() not in ("", before))
    assert eventually(lambda: host.run("true").status == 0)


def test_guest_poweroff_stops_instance(mock_cloud: MockCloud, key: tuple[str, str]) -> None:
    """Its disk stays, and it can be started again."""
    insert(mock_cloud.endpoint, "dev", ssh_keys=f"ed:{key[1]}")
    client = client_of(mock_cloud.endpoint)
    host = mock_cloud.host("dev")
    assert host.run("poweroff").status == 1, "the user is not root"
    assert host.run("echo kept >~/x; sudo poweroff").status == 0
    assert eventually(
        lambda: client.get(project="p", zone=ZONE, instance="dev").status == "TERMINATED"
    )
    assert eventually(lambda: not mock_cloud.ssh_ports)
    client.start_unary(project="p", zone=ZONE, instance="dev")
    assert eventually(
        lambda: client.get(project="p", zone=ZONE, instance="dev").status == "RUNNING"
    )
    assert mock_cloud.host("dev").run("cat x").output == "kept\n"


def test_advanced_clock_ends_run_time_of_instances(
    mock_cloud: MockCloud, key: tuple[str, str]
) -> None:
    """The control API advances the cloud's time by hours; shells go on."""
    insert(mock_cloud.endpoint, "limited", ssh_keys=f"ed:{key[1]}")
    client = client_of(mock_cloud.endpoint)
    client.stop_unary(project="p", zone=ZONE, instance="limited")
    assert eventually(
        lambda: client.get(project="p", zone=ZONE, instance="limited").status == "TERMINATED"
    )
    time_limit = compute_v1.Duration(seconds=3600)
    limit = compute_v1.Scheduling(
        max_run_duration=time_limit,
        instance_termination_action="DELETE",
        on_host_maintenance="TERMINATE",
        automatic_restart=False,
    )
    client.set_scheduling_unary(
        project="p", zone=ZONE, instance="limited", scheduling_resource=limit
    )
    client.start_unary(project="p", zone=ZONE, instance="limited")
    assert eventually(
        lambda: client.get(project="p", zone=ZONE, instance="limited").status == "RUNNING"
    )
    insert(mock_cloud.endpoint, "free", ssh_keys=f"ed:{key[1]}")
    answer = requests.post(
        f"{mock_cloud.endpoint}/emulator/clock", json={"advance_s": 3600}, timeout=10
    )
    assert answer.status_code == 200
    assert [vm.name for vm in client.list(project="p", zone=ZONE)] == ["free"]
    assert mock_cloud.host("free").run("true").status == 0


def test_instance_stops_starts_and_is_deleted(mock_cloud: MockCloud, key: tuple[str, str]) -> None:
    client = client_of(mock_cloud.endpoint)
    insert(mock_cloud.endpoint, "dev", ssh_keys=f"ed:{key[1]}")
    host = mock_cloud.host("dev")
    host.run("echo kept >~/x")
    spawner = host.processes.spawner_pid
    client.stop_unary(project="p", zone=ZONE, instance="dev")
    assert eventually(
        lambda: client.get(project="p", zone=ZONE, instance="dev").status == "TERMINATED"
    )
    assert not Path(f"/proc/{spawner}").exists()
    with pytest.raises(KeyError):
        mock_cloud.host("dev")
    client.start_unary(project="p", zone=ZONE, instance="dev")
    assert eventually(
        lambda: client.get(project="p", zone=ZONE, instance="dev").status == "RUNNING"
    )
    again = mock_cloud.host("dev")
    assert again.run("cat x").output == "kept\n"
    assert again.host.host_key == host.host.host_key
    client.delete_unary(project="p", zone=ZONE, instance="dev")
    assert eventually(lambda: not list(client.list(project="p", zone=ZONE)))
    assert not again.folder.exists()


def test_second_cloud_restores_instances_of_folder(tmp_path: Path, key: tuple[str, str]) -> None:
    with MockCloud(tmp_path / "cloud") as cloud:
        first = insert(cloud.endpoint, "dev", ssh_keys=f"ed:{key[1]}")
        cloud.host("dev").run("echo kept >~/x")
    with MockCloud(tmp_path / "cloud") as cloud:
        again = client_of(cloud.endpoint).get(project="p", zone=ZONE, instance="dev")
        assert (again.id, again.creation_timestamp, again.status) == (
            first.id,
            first.creation_timestamp,
            "RUNNING",
        )
        assert cloud.host("dev").run("cat x").output == "kept\n"


def test_authorized_keys_parses_ssh_keys_metadata() -> None:
    text = "ann:ssh-ed25519 AAAA ann@x\n\nbroken\nbob:ssh-rsa BBBB google-ssh {}\nempty:\n"
    assert authorized_keys({"ssh-keys": text}) == (
        ("ann", "ssh-ed25519 AAAA ann@x"),
        ("bob", "ssh-rsa BBBB google-ssh {}"),
    )
    assert authorized_keys({}) == ()


def test_unsafe_instance_name_creates_no_folder(mock_cloud: MockCloud) -> None:
    with pytest.raises(ValueError, match="not a name"):
        mock_cloud.hosts.boot("../x", ZONE, {}, None, 0)


# --- the background process -----------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder with a space in its name; its mock is stopped at the end."""
    folder = tmp_path / "state of mock"
    yield folder
    background.down(folder)


def alive(pid: int) -> bool:
    return bool(process_start.start_ticks(pid))


def test_up_status_and_down_report_server(state: Path) -> None:
    assert background.status(state) is None
    assert background.down(state) is False
    up = background.up(state)
    assert background.up(state) == up == background.status(state)
    assert alive(up.pid)
    assert background.down(state) is True
    assert not alive(up.pid)
    assert background.status(state) is None
    assert background.down(state) is False


@pytest.mark.slow
def test_down_keeps_state_and_ends_processes(state: Path, key: tuple[str, str]) -> None:
    first = background.up(state)
    instance = insert(first.compute_endpoint, "dev", ssh_keys=f"ed:{key[1]}")
    assert eventually(lambda: "dev" in (background.status(state) or first).ssh_ports)
    port = (background.status(state) or first).ssh_ports["dev"]
    words = [
        "ssh",
        "-F",
        "none",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        f"UserKnownHostsFile={state}/known",
        "-o",
        "LogLevel=ERROR",
        "-i",
        key[0],
    ]
    subprocess.run(
        [
            *words,
            "-p",
            str(port),
            "ed@127.0.0.1",
            "echo kept >x; setsid sleep 1030 >/dev/null 2>&1 &",
        ],
        check=True,
        timeout=30,
    )
    pids = subprocess.run(
        ["pgrep", "-f", "sleep 103[0]"], capture_output=True, text=True, check=True
    ).stdout.split()
    background.down(state)
    assert not any(alive(int(pid)) for pid in pids)
    second = background.up(state)
    assert second.pid != first.pid
    assert second.compute_endpoint == first.compute_endpoint
    assert eventually(lambda: "dev" in (background.status(state) or second).ssh_ports)
    again = client_of(second.compute_endpoint).get(project="p", zone=ZONE, instance="dev")
    assert again.id == instance.id
    shown = subprocess.run(
        [*words, "-p", str(port), "ed@127.0.0.1", "cat x"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert shown.stdout == "kept\n", shown.stderr


def test_concurrent_up_starts_one_server(state: Path) -> None:
    code = (
        "import sys, pathlib\nfrom provision.testing import background\n"
        "print(background.up(pathlib.Path(sys.argv[1])).pid)"
    )
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(
                subprocess.run,
                [sys.executable, "-c", code, str(state)],
                capture_output=True,
                text=True,
                check=True,
            )
            for _ in range(3)
        ]
        pids = {run.result().stdout for run in runs}
    assert len(pids) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "{}",
        '{"pid": 1, "started": "0", "version": "x", "compute_endpoint": "", "ssh_ports": {}}',
    ],
)
def test_stale_and_invalid_records_are_replaced(state: Path, text: str) -> None:
    state.mkdir()
    (state / "mock.json").write_text(text)
    assert background.status(state) is None
    assert alive(background.up(state).pid)


@pytest.mark.slow
def test_killed_server_leaves_no_process_and_next_one_starts(
    state: Path, key: tuple[str, str]
) -> None:
    up = background.up(state)
    insert(up.compute_endpoint, "dev", ssh_keys=f"ed:{key[1]}")
    spawners = _children(up.pid)
    assert spawners
    os.kill(up.pid, signal.SIGKILL)
    assert eventually(lambda: not any(alive(pid) for pid in spawners))
    assert background.status(state) is None
    assert alive(background.up(state).pid)


def _children(parent: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    ).stdout
    return [int(pid) for pid in found.split()]


@pytest.mark.slow
def test_idle_server_stops_itself(state: Path) -> None:
    up = background.up(state, idle_s=0.5)
    assert eventually(lambda: not alive(up.pid))
    assert background.status(state) is None
    assert not (state / "mock.json").exists()


@pytest.mark.slow
def test_requests_and_connections_keep_server_alive(state: Path) -> None:
    up = background.up(state, idle_s=1.5)
    client = client_of(up.compute_endpoint)
    for _ in range(5):
        time.sleep(0.5)
        list(client.list(project="p", zone=ZONE))
    assert alive(up.pid)


def test_failed_server_start_reports_last_log_line(state: Path) -> None:
    state.mkdir()
    (state / "world.json").write_text("broken")
    with pytest.raises(ProvisionError) as caught:
        background.up(state)
    assert "the mock did not start" in str(caught.value)
    assert "JSONDecodeError" in caught.value.why
    assert str(state) in caught.value.fix


@pytest.mark.slow
def test_up_replaces_server_of_other_version(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = background.up(state)
    monkeypatch.setattr(background, "version", lambda: "0.0.0-other")
    new = background.up(state)
    assert new.pid != old.pid
    assert not alive(old.pid)


def test_server_is_killed_after_start_timeout(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_START_S", 0.05)
    with pytest.raises(ProvisionError, match="the mock did not start") as caught:
        background.up(state)
    assert "no answer within 0.05 s" in caught.value.why
    found = subprocess.run(
        ["pgrep", "-f", f"--state {state}"], capture_output=True, text=True, check=False
    ).stdout
    assert eventually(lambda: not any(alive(int(pid)) for pid in found.split()))


# --- the plugin -----------------------------------------------------------------------------------


def test_readme_smoke_test_passes(mock_cos_host: MockHost) -> None:
    done = mock_cos_host.run("sudo cos-extensions install gpu")
    assert done.status == 0
    assert mock_cos_host.path("/var/lib/nvidia/bin/nvidia-smi").exists()


def test_plugin_import_loads_no_heavy_module() -> None:
    heavy = ("paramiko", "werkzeug", "google", "fabric")
    code = (
        f"import sys, provision.testing.plugin; print([name for name in {heavy} if name in "
        "sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
