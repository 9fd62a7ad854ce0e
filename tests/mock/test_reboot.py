"""Reboots of a mock host: what is lost, kept, restored by user-data; and a full disk."""

from __future__ import annotations

import base64
import gzip

import pytest

from provision.testing import MockHost
from tests.mock.plain_client import ask, connect

R = "$PROVISION_MOCK_ROOT"


def test_reboot_loses_what_cos_loses(cos: MockHost) -> None:
    cos.run(
        "sudo cos-extensions install gpu; "
        "sudo mount --bind /var/lib/nvidia /var/lib/nvidia; "
        "sudo mount -o remount,exec /var/lib/nvidia"
    )
    cos.run(
        f'for dir in etc tmp run mnt/disks var/lib/cloud; do echo x >"{R}/$dir/mine"; done; '
        f'echo x >"{R}/etc/hosts"'
    )
    cos.run(f'for dir in var home/user var/lib/google var/tmp; do echo x >"{R}/$dir/mine"; done')
    cos.run("sudo systemctl start gcr-online.target; sleep 1020 >/dev/null 2>&1 &")
    boot_id = cos.path("/proc/sys/kernel/random/boot_id").read_text()
    with connect(cos) as client:
        cos.reboot()
        transport = client.get_transport()
        assert transport is None or not transport.is_active()
    for lost in (
        "etc/mine",
        "tmp/mine",
        "run/mine",
        "mnt/disks/mine",
        "var/lib/cloud/mine",
        "dev/nvidiactl",
        "sys/module/nvidia",
        "proc/driver/nvidia",
    ):
        assert not cos.path(f"/{lost}").exists(), lost
    for kept in (
        "var/mine",
        "home/user/mine",
        "var/lib/google/mine",
        "var/tmp/mine",
        "var/lib/nvidia/bin/nvidia-smi",
        "var/lib/nvidia/.cache",
    ):
        assert cos.path(f"/{kept}").exists(), kept
    assert "localhost" in cos.path("/etc/hosts").read_text()
    assert cos.run("findmnt -M /var/lib/nvidia").status == 1
    assert cos.run(f'"{R}/var/lib/nvidia/bin/nvidia-smi"').status == 126
    assert cos.run("pgrep -f 'sleep 102[0]'").status == 1
    assert cos.path("/proc/sys/kernel/random/boot_id").read_text() != boot_id
    with connect(cos) as client:
        assert ask(client, "echo up").out == "up\n"


def test_host_key_survives_reboots_and_restarts(cos: MockHost) -> None:
    before = cos.host.host_key
    cos.reboot()
    assert cos.host.host_key == before


def test_restart_policies_act_before_gpu_devices_exist(
    cos: MockHost,
) -> None:
    cos.run("sudo cos-extensions install gpu")
    run = "docker run -d --init --entrypoint sleep"
    cos.run(
        f"{run} --name plain python:3.11 infinity; "
        f"{run} --name back --restart unless-stopped python:3.11 infinity"
    )
    cos.run(
        f"{run} --name stopped --restart unless-stopped python:3.11 infinity; docker stop stopped"
    )
    cos.run(f"{run} --name dead --restart always --device /dev/nvidia0 python:3.11 infinity")
    cos.reboot()
    states = cos.run("docker ps -a --format '{{.Names}} {{.State}}'").output.split("\n")
    assert sorted(filter(None, states)) == [
        "back running",
        "dead exited",
        "plain exited",
        "stopped exited",
    ]
    cos.run("sudo cos-extensions install gpu")
    assert cos.run("docker inspect -f '{{.State.Running}}' dead").output == "false\n", (
        "the boot does not try again"
    )
    assert (
        cos.run("docker start dead && docker inspect -f '{{.State.Running}}' dead").output
        == "dead\ntrue\n"
    )


USER_DATA = """\
#cloud-config
# a comment
write_files:
  - path: /etc/systemd/system/mine.service
    permissions: "0644"
    content: |
      [Unit]
      Description=mine

      [Service]
      Type=oneshot
      RemainAfterExit=yes
      ExecStart=/bin/sh /var/lib/mine/boot.sh
      StandardOutput=journal+console
  - path: /var/lib/mine/boot.sh
    encoding: b64
    content: "{script}"
  - path: /etc/packed
    encoding: gz+b64
    permissions: '0600'
    content: {packed}
runcmd:
- [systemctl, daemon-reload]
- [systemctl, start, --no-block, mine.service]
- echo "from a line" > /tmp/line
- ['false']
- [sh, -c, 'echo $0 "$1"', "a, b", 'it''s']
"""


def user_data(script: str) -> str:
    encoded = base64.b64encode(script.encode()).decode()
    return USER_DATA.replace("{script}", encoded).replace(
        "{packed}", base64.b64encode(gzip.compress(b"packed\n")).decode()
    )


def test_user_data_is_applied_at_every_boot(cos: MockHost) -> None:
    cos.put_user_data(
        user_data(
            'R=${PROVISION_MOCK_ROOT-}\necho boot >>"$R/var/lib/mine/boots"; id -u; echo ready\n'
        )
    )
    assert not cos.path("/etc/packed").exists(), (
        "a change reaches a running machine at its next boot only"
    )
    for boots in (1, 2):
        cos.reboot()
        assert cos.wait_for_unit("mine.service") == "active"
        assert cos.path("/var/lib/mine/boots").read_text() == "boot\n" * boots
    assert cos.path("/etc/packed").read_text() == "packed\n"
    assert cos.path("/etc/packed").stat().st_mode & 0o777 == 0o600
    assert cos.path("/tmp/line").read_text() == "from a line\n"
    for text in ("0\nready\n", "runcmd ['false'] failed with status 1", "a, b it's"):
        assert text in cos.console


def test_starting_unit_is_activating(cos: MockHost) -> None:
    cos.put_user_data(user_data("sleep 1\n"))
    cos.reboot()
    assert cos.run("systemctl is-active mine").output == "activating\n"
    assert cos.wait_for_unit("mine") == "active"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("echo not cloud-config\n", "does not start with #cloud-config"),
        ("#cloud-config\nruncmd: {a: b}\n", "runcmd: expected a list, not dict"),
        ("#cloud-config\nruncmd:\n  - [a\n", "Failed loading yaml"),
        ("#cloud-config\npackages: [x]\nruncmd: [[echo, on]]\n", "does not apply 'packages'"),
        (
            "#cloud-config\nwrite_files:\n  - path: /etc/x\n    encoding: rot13\n    content: x\n",
            "unknown encoding 'rot13'",
        ),
        (
            (
                "#cloud-config\nwrite_files:\n"
                "  - path: /etc/x\n    permissions: '99'\n    content: x\n"
            ),
            "permissions '99'",
        ),
        (
            "#cloud-config\nwrite_files:\n  - path: /root/x\n    content: x\n",
            "write_files: /root/x",
        ),
    ],
)
def test_invalid_user_data_is_logged_to_console_and_host_boots(
    cos: MockHost, text: str, printed: str
) -> None:
    cos.put_user_data(text)
    cos.reboot()
    assert printed in cos.console
    assert cos.run("true").status == 0


def test_host_programs_set_guest_attributes() -> None:
    with MockHost(metadata={"enable-guest-attributes": "TRUE", "own": "value"}) as host:
        url = "http://metadata.google.internal/computeMetadata/v1/instance"
        head = "-sSf -H 'Metadata-Flavor: Google'"
        assert (
            host.run(
                f"curl {head} -X PUT --data 'AAAA' {url}/guest-attributes/hostkeys/ssh-ed25519"
            ).status
            == 0
        )
        assert host.guest_attributes == {"hostkeys/ssh-ed25519": "AAAA"}
        assert host.run(f"curl {head} {url}/attributes/own").output == "value"
        assert host.run(f"curl {head} -X PUT --data x {url}/guest-attributes/../../x").status == 22


# --- a full disk ----------------------------------------------------------------------------------


WRITES = (
    f'printf aGVsbG8= | base64 -d >"{R}/var/x"',
    f'echo text | cat >"{R}/var/x"',
    f'cp "{R}/etc/hosts" "{R}/var/x"',
    f'echo text | tee "{R}/var/x" >/dev/null',
    f'dd if=/dev/zero of="{R}/var/x" count=1',
    "sudo cos-extensions install gpu",
    "docker pull python:3.11",
)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_full_disk_refuses_writes_with_enospc(shell: str) -> None:
    with MockHost(shell=shell) as host, connect(host) as client:
        for command in WRITES:
            host.faults.disk_full = True
            answer = ask(client, command)
            assert answer.status != 0, command
            assert "no space left on device" in (answer.out + answer.err).lower(), command
            assert not host.path("/var/x").exists() or host.path("/var/x").stat().st_size == 0
            host.faults.disk_full = False
            assert ask(client, command).status == 0, command
            host.path("/var/x").unlink(missing_ok=True)


def test_full_disk_allows_reads_and_pipes(cos: MockHost) -> None:
    cos.faults.disk_full = True
    with connect(cos) as client:
        assert (
            ask(client, f'cat "{R}/etc/hosts" | head -n 1 | base64 | base64 -d').out
            == "127.0.0.1 localhost\n"
        )
        assert ask(client, f'echo builtin >"{R}/var/x"').status != 0
        with (
            client.open_sftp() as sftp,
            pytest.raises(OSError, match="Failure"),
            sftp.open("x", "wb") as file,
        ):
            file.write(b"x" * 100)
