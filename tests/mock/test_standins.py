"""The traps of Container-Optimized OS, one by one, on the mock."""

from __future__ import annotations

import pytest

from provision.testing import MockHost
from tests.mock.plain_client import SHELL

pytestmark = pytest.mark.busybox

DRIVER = "$PROVISION_MOCK_ROOT/var/lib/nvidia"
SMI = f"LD_LIBRARY_PATH={DRIVER}/lib64 {DRIVER}/bin/nvidia-smi"
BIND = f"sudo mount --bind {DRIVER} {DRIVER}"
REMOUNT = f"sudo mount -o remount,exec {DRIVER}"


def install(host: MockHost, version: str = "") -> None:
    done = host.run(f"sudo cos-extensions install gpu -- -version={version or 'default'}")
    assert done.status == 0, done.output


# --- the machine ----------------------------------------------------------------------------------


def test_host_identifies_as_cos(shared: MockHost) -> None:
    text = shared.path("/etc/os-release").read_text()
    assert "\nID=cos\n" in text
    assert "\nBUILD_ID=19216.655.28\n" in text
    assert shared.path("/sys/bus/pci/devices/0000:00:04.0/vendor").read_text() == "0x10de\n"
    assert shared.path("/sys/bus/pci/devices/0000:00:04.0/class").read_text().startswith("0x03")
    assert not shared.path("/dev/nvidiactl").exists(), "device nodes come with the driver"
    assert (shared.run("nproc").output, shared.run("getconf _NPROCESSORS_ONLN").output) == (
        "8\n",
        "8\n",
    )


def test_host_without_gpu_reports_no_gpu() -> None:
    with MockHost(gpu=None) as host:
        assert "0x10de" not in "".join(
            path.read_text() for path in host.path("/sys/bus/pci/devices").glob("*/vendor")
        )
        done = host.run("sudo cos-extensions install gpu")
        assert done.status == 1
        assert "failed to get GPU type information" in done.output


def test_unknown_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="no mock of the GPU 'nvidia-geforce'"):
        MockHost(gpu="nvidia-geforce")


# --- sudo -----------------------------------------------------------------------------------------


def test_sudo_resets_environment(shared: MockHost) -> None:
    assert shared.run("FOO=1 sudo sh -c 'echo ${FOO-none} $HOME'").output.split() == [
        "none",
        f"{shared.root}/root",
    ]
    assert shared.run("FOO=1 sudo -E sh -c 'echo ${FOO-none}'").output == "1\n"
    assert shared.run("sudo FOO=2 BAR='a b' sh -c 'echo $FOO $BAR'").output == "2 a b\n"
    assert shared.run("sudo -n -- whoami; whoami").output == "root\nuser\n"
    assert shared.run("sudo -nE id -u").output == "0\n"
    assert shared.run("sudo -n sh -c 'exit 9'").status == 9


def test_sudo_faults_print_real_messages(cos: MockHost) -> None:
    unknown = cos.run("sudo no-such-program")
    assert (unknown.status, unknown.output) == (1, "sudo: no-such-program: command not found\n")
    assert cos.run("sudo --nonsense x").status == 1
    cos.faults.set("sudo_password")
    asked = cos.run("sudo -n true")
    assert (asked.status, asked.output) == (1, "sudo: a password is required\n")
    assert "a terminal is required to read the password" in cos.run("sudo true").output


# --- mounts ---------------------------------------------------------------------------------------


def test_findmnt_lists_each_stacked_bind_mount(cos: MockHost) -> None:
    show = f"findmnt -rno OPTIONS -M {DRIVER}"
    assert cos.run(show).status == 1
    cos.run(f"{BIND}; {BIND}")
    assert cos.run(show).output == "rw,nosuid,nodev,noexec,relatime\n" * 2
    cos.run(REMOUNT)
    assert cos.run(show).output.splitlines() == [
        "rw,nosuid,nodev,noexec,relatime",
        "rw,nosuid,nodev,relatime",
    ]
    assert cos.run(f"sudo umount {DRIVER}; {show}").output == "rw,nosuid,nodev,noexec,relatime\n"
    assert (
        cos.run("findmnt -rno TARGET,FSTYPE -T /var/lib/nvidia").output == "/var/lib/nvidia ext4\n"
    )
    assert cos.run("findmnt -no OPTIONS -T /var/lib/docker").output == "rw,nosuid,nodev,relatime\n"
    assert cos.run("findmnt -n -o TARGET --target /var/lib/google").output == "/var/lib/google\n"
    assert "/var/lib/nvidia" in cos.path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (f"mount --bind {DRIVER} {DRIVER}", 32, "must be superuser"),
        (f"sudo mount -o remount,exec {DRIVER}", 32, "mount point not mounted or bad option"),
        (
            "sudo mount --bind /var/nope /var/lib/nvidia",
            32,
            "special device /var/nope does not exist",
        ),
        ("sudo mount --bind /var/lib/nvidia /var/nope", 32, "mount point does not exist"),
        ("sudo umount /var/lib/nvidia", 32, "not mounted"),
        ("sudo mount -o remount,nonsense /var", 32, "bad option"),
        ("sudo mount --frobnicate x", 1, "unrecognized option"),
        ("findmnt --frobnicate", 1, "unrecognized option"),
        ("findmnt -o NONSENSE", 1, "unknown column"),
    ],
)
def test_invalid_mount_is_refused(shared: MockHost, command: str, status: int, text: str) -> None:
    done = shared.run(command)
    assert done.status == status
    assert text in done.output


def test_bind_mount_shows_folder_under_second_name(cos: MockHost) -> None:
    cos.run(
        'sudo mkdir -p "$PROVISION_MOCK_ROOT/mnt/disks/a" '
        '"$PROVISION_MOCK_ROOT/var/b"; echo x >"$PROVISION_MOCK_ROOT/var/b/x"'
    )
    assert cos.run("sudo mount --bind /var/b /mnt/disks/a").status == 0
    assert cos.path("/mnt/disks/a/x").read_text() == "x\n"
    assert cos.run("sudo umount /mnt/disks/a").status == 0
    assert not cos.path("/mnt/disks/a/x").exists()


# --- the driver -----------------------------------------------------------------------------------


def test_driver_runs_only_after_bind_and_remount(cos: MockHost) -> None:
    install(cos)
    denied = cos.run(SMI)
    assert denied.status == 126
    assert "Permission denied" in denied.output
    cos.run(BIND)
    assert cos.run(SMI).status == 126
    cos.run(REMOUNT)
    works = cos.run(f"{SMI} --query-gpu=name,driver_version,memory.total --format=csv,noheader")
    assert (works.status, works.output) == (0, "NVIDIA L4, 580.126.09, 23034 MiB\n")
    cos.run(BIND)
    assert cos.run(SMI).status == 0, "a second mount has the options of the first"
    cos.run(f"sudo mount -o remount,noexec {DRIVER}")
    assert cos.run(SMI).status == 126


def test_second_driver_installation_uses_cache(cos: MockHost) -> None:
    install(cos)
    again = cos.run("sudo cos-extensions install gpu -- -version=580.126.09")
    assert again.status == 0
    assert "Running GPU driver installer" not in again.output
    assert "Finished installing" not in again.output
    assert (
        cos.path("/var/lib/nvidia/.cache").read_text()
        == "BUILD_ID=19216.655.28\nDRIVER_VERSION=580.126.09\nKERNEL_OPEN=true\n"
    )
    assert cos.path("/etc/ld.so.conf").read_text().count("/var/lib/nvidia/lib64") == 2, (
        "the line is added at every run"
    )


def test_other_driver_version_mismatches_loaded_module_until_reboot(
    cos: MockHost,
) -> None:
    install(cos, "R535")
    cos.run(f"{BIND}; {REMOUNT}")
    changed = cos.run("sudo cos-extensions install gpu -- -version=R570")
    assert changed.status == 1
    assert "failed to verify" in changed.output
    assert cos.path("/sys/module/nvidia/version").read_text() == "535.288.01\n"
    mismatch = cos.run(SMI)
    assert mismatch.status == 18
    assert "Driver/library version mismatch" in mismatch.output
    cos.reboot()
    install(cos, "R570")
    cos.run(f"{BIND}; {REMOUNT}")
    assert (
        cos.run(f"{SMI} --query-gpu=driver_version --format=csv,noheader").output == "570.211.01\n"
    )


def test_driver_versions_are_listed_and_resolved(cos: MockHost) -> None:
    listed = cos.run("cos-extensions list").output
    assert "[gpu]" in listed
    assert "580.126.09 [default]" in listed
    assert "590.48.01 [latest]" in listed
    assert cos.run("cos-extensions list -- --gpu-installer").output.startswith(
        "us.gcr.io/cos-cloud/cos-gpu-installer:v2"
    )
    install(cos, "latest")
    assert "DRIVER_VERSION=590.48.01" in cos.path("/var/lib/nvidia/.cache").read_text()


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("installer_lock", 1, "is locked"),
        ("installer_no_egress", 1, "failed to get default driver version"),
        ("installer_signature", 1, "failed to download driver signature"),
        ("installer_docker_timeout", 125, "Client.Timeout exceeded"),
        ("installer_insmod", 1, "failed to load GPU drivers"),
        ("installer_verify", 1, "exit status 255"),
        ("installer_dev_image", 1, "not supported on dev images"),
    ],
)
def test_installer_faults_print_real_messages(
    cos: MockHost, fault: str, status: int, text: str
) -> None:
    cos.faults.set(fault)
    done = cos.run("sudo cos-extensions install gpu")
    assert done.status == status
    assert text in done.output
    cos.faults.clear(fault)
    install(cos)


@pytest.mark.parametrize(
    ("version", "text"),
    [("R999", "failed to get R999 driver version"), ("570.1.1", "status: 404 Not Found")],
)
def test_unknown_driver_version_is_refused(shared: MockHost, version: str, text: str) -> None:
    done = shared.run(f"sudo cos-extensions install gpu -- -version={version}")
    assert done.status == 1
    assert text in done.output
    assert "404" in done.output
    assert not shared.path("/var/lib/nvidia/.cache").exists()


def test_second_concurrent_installer_fails(cos: MockHost) -> None:
    cos.path("/../state/install_seconds").resolve().write_text("1")
    done = cos.run(
        "sudo cos-extensions install gpu >/dev/null 2>&1 & sleep 0.3; sudo "
        "cos-extensions install gpu; echo $?; wait"
    )
    assert "is locked" in done.output
    assert done.output.splitlines()[-1] == "1"


def test_replaced_driver_version_is_reported_and_installed(cos: MockHost) -> None:
    cos.faults.set("installer_fallback")
    done = cos.run("sudo cos-extensions install gpu -- -version=R580")
    assert "doesn't support" in done.output
    assert "Using driver version 535.288.01" in done.output
    assert "DRIVER_VERSION=535.288.01" in cos.path("/var/lib/nvidia/.cache").read_text()


def test_installer_needs_root_and_known_flags(shared: MockHost) -> None:
    assert shared.run("cos-extensions install gpu").status == 1
    assert shared.run("sudo cos-extensions install gpu -- -force").status == 2
    assert shared.run("sudo cos-extensions install tpu").status == 1


def test_nvidia_smi_needs_its_library(cos: MockHost) -> None:
    install(cos)
    cos.run(f'{BIND}; {REMOUNT}; : >"$PROVISION_MOCK_ROOT/etc/ld.so.conf"')
    assert "couldn't find libnvidia-ml.so" in cos.run(f"{DRIVER}/bin/nvidia-smi").output
    assert (
        cos.run(f"{SMI} --query-gpu=utilization.gpu,temperature.gpu --format=csv,noheader").output
        == "[N/A], [N/A]\n"
    )
    assert cos.run(f"{SMI} --query-gpu=nonsense --format=csv").status == 2
    assert cos.run(f"{SMI} -L").output.startswith("GPU 0: NVIDIA L4 (UUID: GPU-")
    assert cos.run(f"{SMI} -c 3").status == 4, "setting the compute mode requires root"
    assert (
        cos.run(
            f"sudo LD_LIBRARY_PATH={DRIVER}/lib64 {DRIVER}/bin/nvidia-smi -c EXCLUSIVE_PROCESS"
        ).status
        == 0
    )
    assert (
        cos.run(f"{SMI} --query-gpu=compute_mode --format=csv,noheader").output
        == "Exclusive_Process\n"
    )


# --- registry login, toolbox, metadata ------------------------------------------------------------


def test_credential_helper_cannot_write_below_root(cos: MockHost) -> None:
    done = cos.run("sudo docker-credential-gcr configure-docker")
    assert (done.status, done.output) == (
        1,
        "ERROR: Unable to save docker config: mkdir /root/.docker: read-only file system\n",
    )
    assert cos.run('sudo touch "$PROVISION_MOCK_ROOT/root/x"').status != 0
    assert cos.run("docker-credential-gcr configure-docker").status == 0
    assert '"gcr.io": "gcr"' in cos.path("/home/user/.docker/config.json").read_text()


def test_credential_helper_keeps_existing_configuration(cos: MockHost) -> None:
    configure = (
        'DOCKER_CONFIG="$PROVISION_MOCK_ROOT/var/lib/x y" docker-credential-gcr '
        "configure-docker --registries="
    )
    assert cos.run(f"{configure}us-docker.pkg.dev,eu.gcr.io").status == 0
    assert cos.run(f"{configure}asia-docker.pkg.dev").status == 0
    text = cos.path("/var/lib/x y/config.json").read_text()
    assert [
        name in text
        for name in ("us-docker.pkg.dev", "eu.gcr.io", "asia-docker.pkg.dev", '"us.gcr.io"')
    ] == [True, True, True, False]
    assert cos.run("docker-credential-gcr configure-docker --nonsense").status == 2


def test_toolbox_copies_from_bucket_to_host(cos: MockHost) -> None:
    cos.put_object("code", "src/main.py", b"print(1)\n")
    done = cos.run("toolbox gsutil -m cp -r gs://code/src /media/root/home/user/")
    assert done.status == 0, done.output
    assert cos.path("/home/user/src/main.py").read_text() == "print(1)\n"
    assert cos.run("toolbox gcloud storage cp gs://code/nope /media/root/tmp/").status == 1
    assert cos.run("toolbox gsutil cp gs://nope/x /media/root/tmp/").status == 1
    assert cos.run("toolbox gsutil rsync a b").status == 1


def test_metadata_server_needs_flavor_header(shared: MockHost) -> None:
    url = "http://metadata.google.internal/computeMetadata/v1/instance"
    assert "Missing required header" in shared.run(f"curl -s {url}/name").output
    assert shared.run(f"curl -s -H 'Metadata-Flavor: Google' {url}/name").output == "mock"
    assert shared.run(f"curl -sf -H 'Metadata-Flavor: Google' {url}/attributes/none").status == 22
    assert (
        shared.run(
            f"curl -sf -X PUT -H 'Metadata-Flavor: Google' --data v {url}/guest-attributes/a/b"
        ).status
        == 22
    ), "not enabled"
    assert shared.run("curl -sS https://storage.googleapis.com").status == 6


# --- systemd --------------------------------------------------------------------------------------

UNIT = """\
[Unit]
Description=test
[Service]
Type=oneshot
RemainAfterExit=yes
Environment=WHO=me
ExecStart=/bin/sh /var/lib/x/run.sh 'two words' plain
ExecStartPost=-/bin/false
[Install]
WantedBy=multi-user.target
"""


def test_oneshot_unit_runs_its_command(cos: MockHost) -> None:
    cos.put("/etc/systemd/system/x.service", UNIT)
    cos.put("/var/lib/x/run.sh", 'echo "$WHO $# $1" >"$PROVISION_MOCK_ROOT/var/lib/x/ran"; id -u\n')
    assert cos.run("systemctl start x").status == 1, "the user is not root"
    assert cos.run(
        "sudo systemctl daemon-reload && sudo systemctl enable x.service"
    ).output.startswith("Created symlink /etc/systemd")
    assert cos.run("systemctl is-active x").output == "inactive\n"
    assert cos.run("sudo systemctl start x").status == 0
    assert cos.path("/var/lib/x/ran").read_text() == "me 2 two words\n"
    assert (
        cos.run(
            "systemctl is-active x; systemctl is-enabled x; journalctl --unit x "
            "--lines 1 --output cat"
        ).output
        == "active\nenabled\n0\n"
    )
    assert (
        cos.run("systemctl show -p ActiveState,SubState x").output
        == "ActiveState=active\nSubState=exited\n"
    )


def test_systemctl_reports_failed_and_missing_units(cos: MockHost) -> None:
    cos.put("/etc/systemd/system/x.service", UNIT)
    done = cos.run("sudo systemctl start x")
    assert done.status == 1
    assert "Job for x.service failed" in done.output
    assert cos.run("systemctl is-active x").output == "failed\n"
    missing = cos.run("sudo systemctl start y")
    assert (missing.status, missing.output) == (
        5,
        "Failed to start y.service: Unit y.service not found.\n",
    )
    assert (
        cos.run("systemctl is-active docker.socket; systemctl is-active y").output
        == "active\ninactive\n"
    )
    assert cos.run("systemctl frobnicate").status == 1


def test_unit_with_unmet_condition_is_skipped(cos: MockHost) -> None:
    cos.put(
        "/etc/systemd/system/x.service",
        UNIT.replace("Description=test", "ConditionPathExists=/var/lib/nope"),
    )
    assert cos.run("sudo systemctl start x").status == 0
    assert cos.run("systemctl is-active x").output == "inactive\n"


def test_unsimulated_command_is_refused(cos: MockHost) -> None:
    for command in (
        "sudo systemctl edit x",
        "curl --frobnicate",
        "docker-credential-gcr frobnicate",
        "toolbox",
        "journalctl --frobnicate",
    ):
        assert cos.run(command).status != 0, command
    with pytest.raises(ValueError, match="unknown fault 'nonsense'"):
        cos.faults.set("nonsense")


# --- a workstation --------------------------------------------------------------------------------


@pytest.mark.slow
def test_ubuntu_host_has_driver_and_no_cos_programs() -> None:
    with MockHost(system="ubuntu", gpu="nvidia-rtx-pro-6000", shell=SHELL) as host:
        for _ in range(2):
            assert "ID=ubuntu" in host.path("/etc/os-release").read_text()
            assert host.run("nvidia-smi --query-gpu=driver_version --format=csv,noheader") == (
                0,
                "580.126.09\n",
            )
            assert "libcuda.so.1 (libc6,x86-64) => " in host.run("ldconfig -p").output
            assert host.run("findmnt -no OPTIONS -T /var").output == "rw,relatime\n"
            for name in ("cos-extensions", "toolbox", "docker-credential-gcr"):
                assert host.run(f"command -v {name}").status != 0, name
            host.reboot()
    with MockHost(system="ubuntu", gpu=None, shell=SHELL) as host:
        assert host.run("command -v nvidia-smi").status != 0
    with pytest.raises(ValueError, match="system must be one of"):
        MockHost(system="windows")
