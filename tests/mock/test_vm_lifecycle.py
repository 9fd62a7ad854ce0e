"""`vm.stop`, `start`, `reset`, `extend`, `label`, `serial` and `wait` on the mock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.create.create import vm_create
from provision.commands.vm.delete import vm_delete
from provision.commands.vm.extend import vm_extend
from provision.commands.vm.label import vm_label
from provision.commands.vm.provision import vm_provision
from provision.commands.vm.reset import vm_reset
from provision.commands.vm.serial import vm_serial
from provision.commands.vm.shared.clock import Clock
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.commands.vm.show import vm_show
from provision.commands.vm.start import vm_start
from provision.commands.vm.stop import vm_stop
from provision.commands.vm.wait import vm_wait
from provision.core.errors import (
    EXIT_CLOUD,
    EXIT_USAGE,
    CloudError,
    CommandTimeout,
    HostKeyMismatch,
    ProvisionError,
    QuotaExceeded,
    Unreachable,
    UsageError,
)
from provision.project.project import Project
from provision.testing.compute import stock_out
from tests.mock.workspace import ZONE, Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

QUICK = WaitLimits(host_keys_s=5.0, ssh_s=20.0, pause_s=0.05, attributes_pause_s=0.05)


@dataclass
class Hand:
    """A clock that a test advances: waiting takes no time, and may call functions."""

    seconds: float = 0.0
    does: Iterator[Callable[[], object]] = field(default_factory=lambda: iter(()))

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        next(self.does, lambda: None)()

    @property
    def time(self) -> Clock:
        return Clock(lambda: self.seconds, self.sleep)


def statuses(done: TaskResult, name: str = "dev") -> dict[str, str]:
    return {
        result["resource"]: result["status"] for result in done.document["hosts"][name]["results"]
    }


def calls(workspace: Workspace) -> list[str]:
    found = workspace.cloud.emulator.call_ids()
    workspace.cloud.emulator.calls.clear()
    return found


# --- stopped, started, reset ----------------------------------------------------------------------


def test_stop_and_start_keep_vm_and_disk(workspace: Workspace) -> None:
    made = workspace.create().document["vm"]
    workspace.cloud.host("dev").put("/var/lib/mine", "kept")
    calls(workspace)

    stopped = vm_stop(workspace.project, "dev")
    assert (stopped.exit_code, stopped.document["changed"]) == (0, True)
    assert [(vm["name"], vm["status"], vm["changed"]) for vm in stopped.document["vms"]] == [
        ("dev", "TERMINATED", True)
    ]
    assert "disk of 200 GB stays and bills" in stopped.text
    assert calls(workspace) == [
        "instances.aggregatedList",
        "instances.stop",
        "zoneOperations.wait",
        "instances.get",
    ]
    again = vm_stop(workspace.project, "dev")
    assert (again.exit_code, again.document["changed"], again.document["vms"][0]["changed"]) == (
        0,
        False,
        False,
    )
    assert calls(workspace) == ["instances.aggregatedList"]

    started = vm_start(workspace.project, "dev", limits=QUICK)
    assert (started.exit_code, started.document["changed"]) == (0, True)
    assert started.document["vms"][0]["instance_id"] == made["instance_id"]
    assert set(statuses(started).values()) <= {"ok", "changed"}
    assert workspace.cloud.host("dev").path("/var/lib/mine").read_text() == "kept"
    again = vm_start(workspace.project, "dev", limits=QUICK)
    assert (again.exit_code, again.document["changed"]) == (0, False)
    assert set(statuses(again).values()) == {"ok"}


@pytest.mark.parametrize("way", ["reset", "stop and start"])
def test_recipe_shows_no_difference_after_boot(workspace: Workspace, way: str) -> None:
    """The mock host loses what COS loses (/etc, mounts, processes); the boot unit restores it."""
    workspace.create()
    host = workspace.cloud.host("dev")
    boot_id = host.path("/proc/sys/kernel/random/boot_id").read_text()
    host.run(
        'for dir in etc run tmp; do echo x >"$PROVISION_MOCK_ROOT/$dir/mine"; done; '
        "sleep 1021 >/dev/null 2>&1 &"
    )
    if way == "reset":
        done = vm_reset(workspace.project, "dev", limits=QUICK)
    else:
        vm_stop(workspace.project, "dev")
        done = vm_start(workspace.project, "dev", limits=QUICK)
    assert (done.exit_code, done.document["changed"]) == (0, True)
    host = workspace.cloud.host("dev")
    assert host.path("/proc/sys/kernel/random/boot_id").read_text() != boot_id
    assert [
        path for path in ("/etc/mine", "/run/mine", "/tmp/mine") if host.path(path).exists()
    ] == []
    assert host.run("pgrep -f 'sleep 102[1]'").status == 1
    changed = {name for name, status in statuses(done).items() if status != "ok"}
    assert changed <= {"boot"}, (
        "the boot's own steps did all the work: the task only waited for them"
    )
    assert host.run("systemctl is-active provision-boot.service").output == "active\n"
    check = vm_provision(workspace.project, Targets(check=True))
    assert (check.exit_code, set(statuses(check).values())) == (0, {"ok"})


def test_start_without_capacity_fails_in_the_vms_own_zone(workspace: Workspace) -> None:
    workspace.create()
    vm_stop(workspace.project, "dev")
    workspace.cloud.emulator.faults.add(
        replace(stock_out(ZONE), call="instances.start", times=None)
    )
    calls(workspace)
    with pytest.raises(CloudError) as caught:
        vm_start(workspace.project, "dev", limits=QUICK)
    assert (caught.value.exit_code, caught.value.where) == (EXIT_CLOUD, f"{ZONE}/dev")
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in caught.value.why
    assert caught.value.fix.splitlines()[0].startswith("invoke vm.start --name dev later")
    assert workspace.listed() == [("dev", "TERMINATED")]
    assert "instances.insert" not in calls(workspace)


def test_start_of_several_requires_quota_for_all(workspace: Workspace) -> None:
    vm_create(workspace.project, "dev", Targets(), count=2, limits=QUICK)
    for name in ("dev-1", "dev-2"):
        workspace.stop(name)
    workspace.cloud.emulator.quotas.set("NVIDIA_L4_GPUS", 1)
    calls(workspace)
    with pytest.raises(QuotaExceeded, match="no room for 2 VMs that are to be started") as caught:
        vm_start(workspace.project, "dev-*")
    assert (
        caught.value.why == "needs 2 of NVIDIA_L4_GPUS in us-central1, 1 left (limit 1, in use 0)"
    )
    assert calls(workspace) == ["instances.aggregatedList", "regions.get"]
    with pytest.raises(QuotaExceeded, match="no room for 2 VMs that are to be started"):
        vm_create(workspace.project, "dev", Targets(), count=2)
    assert not {"instances.start", "instances.insert"} & {*calls(workspace)}
    assert vm_start(workspace.project, "dev-1", limits=QUICK).exit_code == 0
    assert "regions.get" not in calls(workspace), (
        "the start of a single VM is refused in the same words"
    )
    with pytest.raises(QuotaExceeded, match="the VM was not started"):
        vm_start(workspace.project, "dev-2", limits=QUICK)


def test_reset_refuses_stopped_vm(workspace: Workspace) -> None:
    workspace.create()
    vm_stop(workspace.project, "dev")
    with pytest.raises(CloudError, match="only a VM that runs") as caught:
        vm_reset(workspace.project, "dev")
    assert (caught.value.why, caught.value.fix) == (
        "it is TERMINATED",
        "invoke vm.start --name dev",
    )


def test_started_vm_without_ssh_is_reported_as_running(workspace: Workspace) -> None:
    workspace.create()
    vm_stop(workspace.project, "dev")
    workspace.cloud.emulator.calls.clear()
    patience = WaitLimits(host_keys_s=0.1, ssh_s=0.2, pause_s=0.05, attributes_pause_s=0.05)
    real = workspace.cloud.hosts.boot

    def refusing(
        name: str, zone: str, metadata: dict[str, str], gpu: str | None, gpu_count: int
    ) -> tuple[str, int]:
        at = real(name, zone, metadata, gpu, gpu_count)
        workspace.cloud.host(name).faults.refuse_auth = True
        return at

    workspace.cloud.hosts.boot = refusing  # type: ignore[method-assign]
    with pytest.raises(Unreachable) as caught:
        vm_start(workspace.project, "dev", limits=patience)
    assert f"dev runs in {ZONE}" in caught.value.why


# --- several --------------------------------------------------------------------------------------


@pytest.fixture
def three(workspace: Workspace) -> Workspace:
    for name in ("dev", "web-1", "web-2"):
        assert vm_create(workspace.project, name, Targets(), limits=QUICK).exit_code == 0
    return workspace


def test_pattern_acts_on_several_vms(three: Workspace) -> None:
    stopped = vm_stop(three.project, "web-*")
    assert [vm["name"] for vm in stopped.document["vms"]] == ["web-1", "web-2"]
    assert three.listed() == [("dev", "RUNNING"), ("web-1", "TERMINATED"), ("web-2", "TERMINATED")]
    started = vm_start(three.project, "dev,web-1,web-2", limits=QUICK)
    assert started.exit_code == 0
    assert [(vm["name"], vm["changed"]) for vm in started.document["vms"]] == [
        ("dev", False),
        ("web-1", True),
        ("web-2", True),
    ]
    assert sorted(started.document["hosts"]) == ["dev", "web-1", "web-2"]
    assert [record.name for record in three.project.records.all()] == [
        "dev",
        "web-1",
        "web-2",
    ]

    three.cloud.emulator.faults.add(replace(stock_out(ZONE), call="instances.start", times=1))
    vm_stop(three.project, "web-?")
    half = vm_start(three.project, "web-1,web-2", limits=QUICK)
    assert half.exit_code == EXIT_CLOUD
    assert sorted("error" in vm for vm in half.document["vms"]) == [False, True]
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in half.document["error"]["why"]
    assert len(half.document["hosts"]) == 1

    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(UsageError, match="dev, web-1, web-2 were not deleted"):
        vm_delete(three.project, "*", yes=False, confirm=no)
    assert asked == ["Delete 3 VMs and their disks: dev, web-1, web-2?"]
    gone = vm_delete(three.project, "web-*", yes=True, confirm=None)
    assert (gone.exit_code, sorted(vm["name"] for vm in gone.document["deleted"])) == (
        0,
        ["web-1", "web-2"],
    )
    assert three.listed() == [("dev", "RUNNING")]


def test_name_without_match_is_usage_error(workspace: Workspace) -> None:
    """The user's mistake, not a refusal of the cloud: exit code 2, with the names of the VMs."""

    def extend(project: Project, name: str) -> TaskResult:
        return vm_extend(project, "2h", name)

    def label(project: Project, name: str) -> TaskResult:
        return vm_label(project, "team=ml", name)

    def delete(project: Project, name: str) -> TaskResult:
        return vm_delete(project, name, yes=True, confirm=None)

    for known in ("this project has no VM", "VMs of this project: dev"):
        for task in (vm_stop, vm_start, vm_reset, extend, label, vm_serial, vm_wait, vm_show):
            with pytest.raises(UsageError, match="no VM named web") as caught:
                task(workspace.project, "web")
            assert (caught.value.exit_code, caught.value.why) == (EXIT_USAGE, known)
        for task in (vm_stop, vm_start, vm_reset, extend, label, delete):
            with pytest.raises(UsageError, match=r"no VM named zz\*") as caught:
                task(workspace.project, "zz*")
            assert (caught.value.exit_code, caught.value.why) == (EXIT_USAGE, known)
        for task in (vm_serial, vm_wait, vm_show):
            with pytest.raises(UsageError, match="acts on one VM") as caught:
                task(workspace.project, "zz*")
            assert (caught.value.exit_code, caught.value.why) == (EXIT_USAGE, "zz* is a pattern")
            with pytest.raises(UsageError, match="acts on one VM"):
                task(workspace.project, "dev,web")
        if "no VM" in known:
            workspace.create()
    with pytest.raises(UsageError, match="names no VM"):
        vm_stop(workspace.project, " , ")


def test_host_of_the_settings_cannot_be_stopped(workspace: Workspace) -> None:
    workspace.settings = workspace.settings.model_validate(
        {"hosts": {"box": {"address": "127.0.0.1"}}}
    )
    for task in (vm_stop, vm_start, vm_reset, vm_serial):
        with pytest.raises(UsageError, match="box is a host of the settings") as caught:
            task(workspace.project, "box")
        assert caught.value.exit_code == EXIT_USAGE


# --- labels ---------------------------------------------------------------------------------------


def test_label_sets_and_removes_labels(workspace: Workspace) -> None:
    workspace.create()
    put = vm_label(workspace.project, "team=ml, run=42", "dev")
    assert (put.document["changed"], put.text) == (True, "dev: run=42, team=ml")
    calls(workspace)
    again = vm_label(workspace.project, "team=ml", "dev")
    assert (again.document["changed"], calls(workspace)) == (False, ["instances.aggregatedList"])
    gone = vm_label(workspace.project, "run-,never-", "dev")
    assert gone.text == "dev: team=ml"
    labels = vm_show(workspace.project, "dev").document["vm"]["labels"]
    assert labels["team"] == "ml"
    assert labels["provision-owner"]
    assert "run" not in labels


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ("", "no label was given"),
        ("Team=ml", "'Team=ml' is not a label"),
        ("team", "'team' is not a label"),
        ("team=" + "x" * 64, "is not a label"),
        ("provision-owner=me", "provision-owner is reserved"),
        ("provision-owner-", "provision-owner is reserved"),
    ],
)
def test_label_refuses_invalid_and_reserved_labels(
    workspace: Workspace, labels: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        vm_label(workspace.project, labels, "dev")


# --- watched --------------------------------------------------------------------------------------


def test_serial_removes_terminal_control_sequences(workspace: Workspace) -> None:
    workspace.create()
    workspace.cloud.emulator.print_serial(
        "dev", ZONE, "\x1b[2J\x1b[1;31mBIOS\x1b[0m says hello\r\n"
    )
    done = vm_serial(workspace.project, "dev")
    assert done.text.splitlines()[-1] == "BIOS says hello"
    assert done.document["next"] >= len(done.text)


def followed(workspace: Workspace, *does: Callable[[], object]) -> tuple[TaskResult, list[str]]:
    """Follow the serial port, one call of `does` at each pause; return the result and the lines."""
    printed = bytearray()
    project = replace(workspace.project, stdout=printed.extend)
    done = vm_serial(project, "dev", follow=True, clock=Hand(does=iter(does)).time)
    return done, printed.decode().splitlines()


def test_serial_follow_ends_when_vm_stops(workspace: Workspace) -> None:
    workspace.create()
    say = workspace.cloud.emulator.print_serial
    done, lines = followed(
        workspace,
        lambda: say("dev", ZONE, "one\nhal"),
        lambda: say("dev", ZONE, "f\ntwo"),
        workspace.stop,
    )
    assert (lines[-3:], done.text) == (["one", "half", "two"], "")


def test_serial_follow_ends_when_vm_is_deleted(workspace: Workspace) -> None:
    workspace.create()
    say, gone = (
        workspace.cloud.emulator.print_serial,
        lambda: vm_delete(workspace.project, "dev", yes=True, confirm=None),
    )
    done, lines = followed(workspace, lambda: say("dev", ZONE, "one\nhalf"), gone)
    assert (done.exit_code, lines[-2:]) == (0, ["one", "half"])


def test_serial_follow_reports_lost_bytes(workspace: Workspace) -> None:
    workspace.create()
    say, many = workspace.cloud.emulator.print_serial, 2**17
    _, lines = followed(
        workspace,
        lambda: say("dev", ZONE, "hal"),
        lambda: say("dev", ZONE, "f\nlost\n" + many * "eight..\n"),
        workspace.stop,
    )
    assert lines[-many - 1 :] == ["hal", *(many * ["eight.."])]
    assert "7 bytes are lost: more was printed at once than the cloud keeps" in workspace.notes


# --- waited for -----------------------------------------------------------------------------------


def test_wait_until_ready_returns_when_recipe_matches(workspace: Workspace) -> None:
    workspace.create()
    done = vm_wait(workspace.project, "dev", clock=Hand().time)
    assert (done.exit_code, done.document["vm"]["name"], done.document["until"], done.text) == (
        0,
        "dev",
        "ready",
        "dev is ready",
    )
    for until, text in (("running", "dev runs"), ("ssh", "dev answers on SSH")):
        assert vm_wait(workspace.project, "dev", until=until, clock=Hand().time).text == text


def test_wait_prints_pending_resources_and_continues(workspace: Workspace) -> None:
    workspace.create()
    host = workspace.cloud.host("dev")
    host.run("sudo umount /var/lib/nvidia")
    hand = Hand(
        does=iter(
            [
                lambda: None,
                lambda: host.run('sudo sh "$PROVISION_MOCK_ROOT/var/lib/provision/boot.sh"'),
            ]
        )
    )
    done = vm_wait(workspace.project, "dev", clock=hand.time)
    assert (done.exit_code, done.document["waited_s"]) == (0, 6.0)
    assert [note for note in workspace.notes if note.startswith("waiting")] == [
        "waiting for driver-mount, nvidia-smi"
    ]


def test_wait_raises_when_timeout_is_over(workspace: Workspace) -> None:
    workspace.create()
    workspace.cloud.host("dev").run("sudo umount /var/lib/nvidia")
    with pytest.raises(CommandTimeout) as caught:
        vm_wait(workspace.project, "dev", timeout="30s", clock=Hand().time)
    assert (caught.value.why, caught.value.fix) == (
        "still to come: driver-mount, nvidia-smi",
        "invoke vm.provision --host dev",
    )


def test_wait_and_extend_accept_spans_below_ttl_bounds(workspace: Workspace) -> None:
    """The bounds of a time to live apply to the sum, not to the span that is given."""
    workspace.create()
    assert (
        vm_wait(
            workspace.project, "dev", until="running", timeout="10s", clock=Hand().time
        ).exit_code
        == 0
    )
    workspace.stop()
    assert vm_extend(workspace.project, "10s", "dev").exit_code == 0
    for wrong in ("0s", "121d", "soon", "none"):
        with pytest.raises(UsageError):
            vm_extend(workspace.project, wrong, "dev")


def test_wait_refuses_stopped_vm(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="no VM named dev"):
        vm_wait(workspace.project, "dev", clock=Hand().time)
    workspace.create()
    workspace.stop()
    with pytest.raises(CloudError, match="waiting starts nothing") as caught:
        vm_wait(workspace.project, "dev", clock=Hand().time)
    assert caught.value.fix == "invoke vm.start --name dev"
    for wrong in ({"until": "soon"}, {"timeout": "a while"}, {"timeout": "0s"}):
        with pytest.raises(UsageError):
            vm_wait(workspace.project, "dev", **wrong, clock=Hand().time)


def test_wait_accepts_host_of_the_settings(workspace: Workspace) -> None:
    workspace.create()
    host = workspace.cloud.host("dev")
    entry = {
        "address": "127.0.0.1",
        "port": host.server.port,
        "user": "provision",
        "identity": str(workspace.project.home / "key"),
    }
    hosts = {
        "box": {**entry, "host_key": host.host.host_key},
        "closed": {**entry, "port": 1},
        "other": entry,
    }
    workspace.settings = workspace.settings.model_validate({"hosts": hosts})
    assert vm_wait(workspace.project, "box", clock=Hand().time).text == "box is ready"
    with pytest.raises(Unreachable):
        vm_wait(workspace.project, "closed", until="ssh", timeout="30s", clock=Hand().time)
    with pytest.raises(HostKeyMismatch):
        vm_wait(workspace.project, "other", until="ssh", clock=Hand().time)
    assert issubclass(HostKeyMismatch, ProvisionError)


# --- more time ------------------------------------------------------------------------------------


def ttl_of(workspace: Workspace) -> int | None:
    return workspace.project.connect_cloud().list({})[0].ttl_s


def test_extend_of_stopped_vm_applies_to_next_run_only(workspace: Workspace) -> None:
    workspace.create()
    workspace.stop()
    done = vm_extend(workspace.project, "2h", "dev")
    assert (done.exit_code, done.document["changed"]) == (0, True)
    assert done.text == "dev: 10h00m from its next start; 8h00m from later ones"
    (sent,) = [
        call.body
        for call in workspace.cloud.emulator.calls
        if call.api == "instances.setScheduling"
    ]
    assert sent is not None
    assert sent["maxRunDuration"] == {"seconds": str(10 * 3600)}
    assert (
        sent["onHostMaintenance"],
        sent["automaticRestart"],
        sent["instanceTerminationAction"],
    ) == ("TERMINATE", True, "STOP")
    starts: list[Callable[[], TaskResult]] = [
        lambda: vm_start(workspace.project, "dev", limits=QUICK),
        workspace.create,
    ]
    for start in starts:
        assert ttl_of(workspace) == 10 * 3600
        assert start().exit_code == 0
        workspace.stop()
    assert ttl_of(workspace) == 8 * 3600, "the extension is reset before the second start"
    assert workspace.notes.count("dev: its time limit is 8h again, as before it was extended") == 1


def test_extend_of_running_vm_needs_restart(workspace: Workspace) -> None:
    """The API documents setScheduling "on a stopped instance" only; the refusal has a remedy."""
    workspace.create()
    with pytest.raises(CloudError) as caught:
        vm_extend(workspace.project, "2h", "dev")
    assert caught.value.exit_code == EXIT_CLOUD
    assert caught.value.fix.startswith("invoke vm.extend 2h --name dev --restart")
    assert workspace.cloud.emulator.call_ids().count("instances.setScheduling") == 1
    assert workspace.listed() == [("dev", "RUNNING")]

    done = vm_extend(workspace.project, "2h", "dev", restart=True, limits=QUICK)
    assert (done.exit_code, done.document["changed"]) == (0, True)
    assert set(statuses(done).values()) <= {"ok", "changed"}
    left_s = done.document["vms"][0]["ttl_left_s"]
    assert 10 * 3600 - 120 < left_s <= 10 * 3600, "the remaining time and two hours"
    assert done.text.endswith(" left; 8h00m from its next start")
    workspace.stop()
    assert vm_start(workspace.project, "dev", limits=QUICK).exit_code == 0
    assert ttl_of(workspace) == 8 * 3600


def test_extend_refuses_invalid_durations(workspace: Workspace) -> None:
    for wrong in ("soon", "none", "5s"):
        with pytest.raises(UsageError):
            vm_extend(workspace.project, wrong, "dev")
    workspace.settings = workspace.settings.model_copy(update={"ttl": "none"})
    workspace.create()
    calls(workspace)
    done = vm_extend(workspace.project, "2h", "dev")
    assert (done.document["changed"], done.text, calls(workspace)) == (
        False,
        "dev: no change",
        ["instances.aggregatedList"],
    )
    assert "dev has no time limit: nothing to extend" in workspace.notes


def test_extend_refuses_more_than_120_days(workspace: Workspace) -> None:
    workspace.create()
    workspace.stop()
    with pytest.raises(UsageError, match="too long") as caught:
        vm_extend(workspace.project, "120d", "dev")
    assert "at most 120 days" in caught.value.why
