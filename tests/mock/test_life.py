"""VMs stopped, started, reset, labelled, watched and waited for, through the use cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from provision import app
from provision.app import Done, Session, Targets
from provision.app.clouds import cloud_of
from provision.app.state import VmRecords
from provision.app.vm.reach import Patience
from provision.app.vm.watch import Time
from provision.errors import (
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
from provision.testing.compute import stock_out
from tests.mock.project import ZONE, Project

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

QUICK = Patience(host_keys_s=5.0, ssh_s=20.0, pause_s=0.05, attributes_pause_s=0.05)


@dataclass
class Hand:
    """A clock that a test moves by hand: waiting costs no time, and may do something."""

    seconds: float = 0.0
    does: Iterator[Callable[[], object]] = field(default_factory=lambda: iter(()))

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        next(self.does, lambda: None)()

    @property
    def time(self) -> Time:
        return Time(lambda: self.seconds, self.sleep)


def statuses(done: Done, name: str = "dev") -> dict[str, str]:
    return {result["resource"]: result["status"] for result in done.document["hosts"][name]["results"]}


def calls(project: Project) -> list[str]:
    found = project.cloud.emulator.counted()
    project.cloud.emulator.calls.clear()
    return found


# --- stopped, started, reset ----------------------------------------------------------------------------------------------


def test_stop_and_start_keep_the_vm_and_its_disk(project: Project) -> None:
    made = project.create().document["vm"]
    project.cloud.host("dev").put("/var/lib/mine", "kept")
    calls(project)

    stopped = app.vm_stop(project.session, "dev")
    assert (stopped.exit_code, stopped.document["changed"]) == (0, True)
    assert [(vm["name"], vm["status"], vm["changed"]) for vm in stopped.document["vms"]] == [("dev", "TERMINATED", True)]
    assert "disk of 200 GB stays and bills" in stopped.text
    assert calls(project) == ["instances.aggregatedList", "instances.stop", "zoneOperations.wait", "instances.get"]
    again = app.vm_stop(project.session, "dev")
    assert (again.exit_code, again.document["changed"], again.document["vms"][0]["changed"]) == (0, False, False)
    assert calls(project) == ["instances.aggregatedList"]

    started = app.vm_start(project.session, "dev", patience=QUICK)
    assert (started.exit_code, started.document["changed"]) == (0, True)
    assert started.document["vms"][0]["instance_id"] == made["instance_id"]
    assert set(statuses(started).values()) <= {"ok", "changed"}
    assert project.cloud.host("dev").path("/var/lib/mine").read_text() == "kept"
    again = app.vm_start(project.session, "dev", patience=QUICK)
    assert (again.exit_code, again.document["changed"]) == (0, False)
    assert set(statuses(again).values()) == {"ok"}


@pytest.mark.parametrize("way", ["reset", "stop and start"])
def test_after_a_boot_the_probe_shows_no_difference(project: Project, way: str) -> None:
    """What COS loses is lost on the mock host too: memory, /etc, mounts, the exec remount, processes. The boot unit brings it back."""
    project.create()
    host = project.cloud.host("dev")
    boot_id = host.path("/proc/sys/kernel/random/boot_id").read_text()
    host.run('for dir in etc run tmp; do echo x >"$PROVISION_MOCK_ROOT/$dir/mine"; done; sleep 1021 >/dev/null 2>&1 &')
    if way == "reset":
        done = app.vm_reset(project.session, "dev", patience=QUICK)
    else:
        app.vm_stop(project.session, "dev")
        done = app.vm_start(project.session, "dev", patience=QUICK)
    assert (done.exit_code, done.document["changed"]) == (0, True)
    host = project.cloud.host("dev")
    assert host.path("/proc/sys/kernel/random/boot_id").read_text() != boot_id
    assert [path for path in ("/etc/mine", "/run/mine", "/tmp/mine") if host.path(path).exists()] == []
    assert host.run("pgrep -f 'sleep 102[1]'").status == 1
    changed = {name for name, status in statuses(done).items() if status != "ok"}
    assert changed <= {"boot"}, "the boot's own steps did it all: there was nothing left but to wait for them"
    assert host.run("systemctl is-active provision-boot.service").output == "active\n"
    check = app.vm_provision(project.session, Targets(check=True))
    assert (check.exit_code, set(statuses(check).values())) == (0, {"ok"})


def test_a_start_without_capacity_says_so_and_goes_nowhere_else(project: Project) -> None:
    project.create()
    app.vm_stop(project.session, "dev")
    project.cloud.emulator.faults.add(replace(stock_out(ZONE), call="instances.start", times=None))
    calls(project)
    with pytest.raises(CloudError) as caught:
        app.vm_start(project.session, "dev", patience=QUICK)
    assert (caught.value.exit_code, caught.value.where) == (EXIT_CLOUD, f"{ZONE}/dev")
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in caught.value.why
    assert caught.value.fix.splitlines()[0].startswith("invoke vm.start --name dev later")
    assert project.listed() == [("dev", "TERMINATED")]
    assert "instances.insert" not in calls(project)


def test_several_are_started_where_the_quota_has_room_for_all(project: Project) -> None:
    app.vm_create(project.session, "dev", Targets(), count=2, patience=QUICK)
    for name in ("dev-1", "dev-2"):
        project.stop(name)
    project.cloud.emulator.quotas.set("NVIDIA_L4_GPUS", 1)
    calls(project)
    with pytest.raises(QuotaExceeded, match="no room for 2 VMs that are to be started") as caught:
        app.vm_start(project.session, "dev-*")
    assert caught.value.why == "needs 2 of NVIDIA_L4_GPUS in us-central1, 1 left (limit 1, in use 0)"
    assert calls(project) == ["instances.aggregatedList", "regions.get"]
    with pytest.raises(QuotaExceeded, match="no room for 2 VMs that are to be started"):
        app.vm_create(project.session, "dev", Targets(), count=2)
    assert not {"instances.start", "instances.insert"} & {*calls(project)}
    assert app.vm_start(project.session, "dev-1", patience=QUICK).exit_code == 0
    assert "regions.get" not in calls(project), "the start of a single VM is refused in the same words"
    with pytest.raises(QuotaExceeded, match="the VM was not started"):
        app.vm_start(project.session, "dev-2", patience=QUICK)


def test_only_what_runs_is_reset(project: Project) -> None:
    project.create()
    app.vm_stop(project.session, "dev")
    with pytest.raises(CloudError, match="only a VM that runs") as caught:
        app.vm_reset(project.session, "dev")
    assert (caught.value.why, caught.value.fix) == ("it is TERMINATED", "invoke vm.start --name dev")


def test_a_vm_that_never_answers_after_its_start_is_named(project: Project) -> None:
    project.create()
    app.vm_stop(project.session, "dev")
    project.cloud.emulator.calls.clear()
    patience = Patience(host_keys_s=0.1, ssh_s=0.2, pause_s=0.05, attributes_pause_s=0.05)
    real = project.cloud.hosts.boot

    def refusing(name: str, zone: str, metadata: dict[str, str], gpu: str | None, gpu_count: int) -> tuple[str, int]:
        at = real(name, zone, metadata, gpu, gpu_count)
        project.cloud.host(name).faults.refuse_auth = True
        return at

    project.cloud.hosts.boot = refusing  # type: ignore[method-assign]
    with pytest.raises(Unreachable) as caught:
        app.vm_start(project.session, "dev", patience=patience)
    assert f"dev runs in {ZONE}" in caught.value.why


# --- several --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(project: Project) -> Project:
    for name in ("dev", "web-1", "web-2"):
        assert app.vm_create(project.session, name, Targets(), patience=QUICK).exit_code == 0
    return project


def test_several_at_once(three: Project) -> None:
    stopped = app.vm_stop(three.session, "web-*")
    assert [vm["name"] for vm in stopped.document["vms"]] == ["web-1", "web-2"]
    assert three.listed() == [("dev", "RUNNING"), ("web-1", "TERMINATED"), ("web-2", "TERMINATED")]
    started = app.vm_start(three.session, "dev,web-1,web-2", patience=QUICK)
    assert started.exit_code == 0
    assert [(vm["name"], vm["changed"]) for vm in started.document["vms"]] == [("dev", False), ("web-1", True), ("web-2", True)]
    assert sorted(started.document["hosts"]) == ["dev", "web-1", "web-2"]
    assert [record.name for record in VmRecords(three.session.home / "vms.json").all()] == ["dev", "web-1", "web-2"]

    three.cloud.emulator.faults.add(replace(stock_out(ZONE), call="instances.start", times=1))
    app.vm_stop(three.session, "web-?")
    half = app.vm_start(three.session, "web-1,web-2", patience=QUICK)
    assert half.exit_code == EXIT_CLOUD
    assert sorted("error" in vm for vm in half.document["vms"]) == [False, True]
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in half.document["error"]["why"]
    assert len(half.document["hosts"]) == 1

    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(UsageError, match="dev, web-1, web-2 were not deleted"):
        app.vm_delete(three.session, "*", yes=False, confirm=no)
    assert asked == ["Delete 3 VMs and their disks: dev, web-1, web-2?"]
    gone = app.vm_delete(three.session, "web-*", yes=True, confirm=None)
    assert (gone.exit_code, sorted(vm["name"] for vm in gone.document["deleted"])) == (0, ["web-1", "web-2"])
    assert three.listed() == [("dev", "RUNNING")]


def test_names_that_fit_nothing(project: Project) -> None:
    """A mistake of whoever typed it, and no refusal of the cloud: exit 2, and what there is."""

    def extend(session: Session, name: str) -> Done:
        return app.vm_extend(session, "2h", name)

    def label(session: Session, name: str) -> Done:
        return app.vm_label(session, "team=ml", name)

    def delete(session: Session, name: str) -> Done:
        return app.vm_delete(session, name, yes=True, confirm=None)

    for known in ("this project has no VM", "VMs of this project: dev"):
        for task in (app.vm_stop, app.vm_start, app.vm_reset, extend, label, app.vm_serial, app.vm_wait, app.vm_show):
            with pytest.raises(UsageError, match="no VM named web") as caught:
                task(project.session, "web")
            assert (caught.value.exit_code, caught.value.why) == (EXIT_USAGE, known)
        for task in (app.vm_stop, app.vm_start, app.vm_reset, extend, label, delete):
            with pytest.raises(UsageError, match=r"no VM named zz\*") as caught:
                task(project.session, "zz*")
            assert (caught.value.exit_code, caught.value.why) == (EXIT_USAGE, known)
        for task in (app.vm_serial, app.vm_wait, app.vm_show):
            with pytest.raises(UsageError, match="acts on one VM") as caught:
                task(project.session, "zz*")
            assert (caught.value.exit_code, caught.value.why) == (EXIT_USAGE, "zz* is a pattern")
            with pytest.raises(UsageError, match="acts on one VM"):
                task(project.session, "dev,web")
        if "no VM" in known:
            project.create()
    with pytest.raises(UsageError, match="names no VM"):
        app.vm_stop(project.session, " , ")


def test_a_host_of_the_settings_is_not_the_clouds(project: Project) -> None:
    project.settings = project.settings.model_validate({"hosts": {"box": {"address": "127.0.0.1"}}})
    for task in (app.vm_stop, app.vm_start, app.vm_reset, app.vm_serial):
        with pytest.raises(UsageError, match="box is a host of the settings") as caught:
            task(project.session, "box")
        assert caught.value.exit_code == EXIT_USAGE


# --- labels ---------------------------------------------------------------------------------------------------------------


def test_labels(project: Project) -> None:
    project.create()
    put = app.vm_label(project.session, "team=ml, run=42", "dev")
    assert (put.document["changed"], put.text) == (True, "dev: run=42, team=ml")
    calls(project)
    again = app.vm_label(project.session, "team=ml", "dev")
    assert (again.document["changed"], calls(project)) == (False, ["instances.aggregatedList"])
    gone = app.vm_label(project.session, "run-,never-", "dev")
    assert gone.text == "dev: team=ml"
    labels = app.vm_show(project.session, "dev").document["vm"]["labels"]
    assert labels["team"] == "ml"
    assert labels["provision-owner"]
    assert "run" not in labels


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("", "no label was given"),
        ("Team=ml", "'Team=ml' is no label"),
        ("team", "'team' is no label"),
        ("team=" + "x" * 64, "is no label"),
        ("provision-owner=me", "provision-owner is not yours"),
        ("provision-owner-", "provision-owner is not yours"),
    ],
)
def test_labels_that_cannot_be(project: Project, labels: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        app.vm_label(project.session, labels, "dev")


# --- watched --------------------------------------------------------------------------------------------------------------


def test_the_serial_port_is_printed_without_what_a_terminal_obeys(project: Project) -> None:
    project.create()
    project.cloud.emulator.print_serial("dev", ZONE, "\x1b[2J\x1b[1;31mBIOS\x1b[0m says hello\r\n")
    done = app.vm_serial(project.session, "dev")
    assert done.text.splitlines()[-1] == "BIOS says hello"
    assert done.document["next"] >= len(done.text)


def followed(project: Project, *does: Callable[[], object]) -> tuple[Done, list[str]]:
    """What comes of following the serial port while this happens, one thing at each look; and the lines that are printed."""
    printed = bytearray()
    session = replace(project.session, stdout=printed.extend)
    done = app.vm_serial(session, "dev", follow=True, clock=Hand(does=iter(does)).time)
    return done, printed.decode().splitlines()


def test_the_serial_port_is_followed_until_the_vm_stops(project: Project) -> None:
    project.create()
    say = project.cloud.emulator.print_serial
    done, lines = followed(project, lambda: say("dev", ZONE, "one\nhal"), lambda: say("dev", ZONE, "f\ntwo"), project.stop)
    assert (lines[-3:], done.text) == (["one", "half", "two"], "")


def test_a_vm_that_is_deleted_ends_what_follows_it(project: Project) -> None:
    project.create()
    say, gone = project.cloud.emulator.print_serial, lambda: app.vm_delete(project.session, "dev", yes=True, confirm=None)
    done, lines = followed(project, lambda: say("dev", ZONE, "one\nhalf"), gone)
    assert (done.exit_code, lines[-2:]) == (0, ["one", "half"])


def test_output_that_the_cloud_no_longer_has_is_told(project: Project) -> None:
    project.create()
    say, many = project.cloud.emulator.print_serial, 2**17
    _, lines = followed(project, lambda: say("dev", ZONE, "hal"), lambda: say("dev", ZONE, "f\nlost\n" + many * "eight..\n"), project.stop)
    assert lines[-many - 1 :] == ["hal", *(many * ["eight.."])]
    assert "7 bytes are lost: more was printed at once than the cloud keeps" in project.notes


# --- waited for -----------------------------------------------------------------------------------------------------------


def test_wait_until_ready(project: Project) -> None:
    project.create()
    done = app.vm_wait(project.session, "dev", clock=Hand().time)
    assert (done.exit_code, done.document["vm"]["name"], done.document["until"], done.text) == (0, "dev", "ready", "dev is ready")
    for until, text in (("running", "dev runs"), ("ssh", "dev answers on SSH")):
        assert app.vm_wait(project.session, "dev", until=until, clock=Hand().time).text == text


def test_wait_tells_what_is_left_and_goes_on(project: Project) -> None:
    project.create()
    host = project.cloud.host("dev")
    host.run("sudo umount /var/lib/nvidia")
    hand = Hand(does=iter([lambda: None, lambda: host.run('sudo sh "$PROVISION_MOCK_ROOT/var/lib/provision/boot.sh"')]))
    done = app.vm_wait(project.session, "dev", clock=hand.time)
    assert (done.exit_code, done.document["waited_s"]) == (0, 6.0)
    assert [note for note in project.notes if note.startswith("waiting")] == ["waiting for driver-mount, nvidia-smi"]


def test_wait_ends_with_its_time(project: Project) -> None:
    project.create()
    project.cloud.host("dev").run("sudo umount /var/lib/nvidia")
    with pytest.raises(CommandTimeout) as caught:
        app.vm_wait(project.session, "dev", timeout="30s", clock=Hand().time)
    assert (caught.value.why, caught.value.fix) == ("still to come: driver-mount, nvidia-smi", "invoke vm.provision --host dev")


def test_a_short_wait_and_a_little_more_time(project: Project) -> None:
    """The bounds of a time to live are none of theirs; what is left in the end is held to them."""
    project.create()
    assert app.vm_wait(project.session, "dev", until="running", timeout="10s", clock=Hand().time).exit_code == 0
    project.stop()
    assert app.vm_extend(project.session, "10s", "dev").exit_code == 0
    for wrong in ("0s", "121d", "soon", "none"):
        with pytest.raises(UsageError):
            app.vm_extend(project.session, wrong, "dev")


def test_wait_starts_nothing(project: Project) -> None:
    with pytest.raises(UsageError, match="no VM named dev"):
        app.vm_wait(project.session, "dev", clock=Hand().time)
    project.create()
    project.stop()
    with pytest.raises(CloudError, match="waiting starts nothing") as caught:
        app.vm_wait(project.session, "dev", clock=Hand().time)
    assert caught.value.fix == "invoke vm.start --name dev"
    for wrong in ({"until": "soon"}, {"timeout": "a while"}, {"timeout": "0s"}):
        with pytest.raises(UsageError):
            app.vm_wait(project.session, "dev", **wrong, clock=Hand().time)


def test_a_host_of_the_settings_is_waited_for(project: Project) -> None:
    project.create()
    host = project.cloud.host("dev")
    entry = {"address": "127.0.0.1", "port": host.server.port, "user": "provision", "identity": str(project.session.home / "key")}
    hosts = {"box": {**entry, "host_key": host.host.host_key}, "closed": {**entry, "port": 1}, "other": entry}
    project.settings = project.settings.model_validate({"hosts": hosts})
    assert app.vm_wait(project.session, "box", clock=Hand().time).text == "box is ready"
    with pytest.raises(Unreachable):
        app.vm_wait(project.session, "closed", until="ssh", timeout="30s", clock=Hand().time)
    with pytest.raises(HostKeyMismatch):
        app.vm_wait(project.session, "other", until="ssh", clock=Hand().time)
    assert issubclass(HostKeyMismatch, ProvisionError)


# --- more time ------------------------------------------------------------------------------------------------------------


def ttl_of(project: Project) -> int | None:
    return cloud_of(project.session).list({})[0].ttl_s


def test_a_stopped_vm_gets_more_time_for_its_next_run(project: Project) -> None:
    project.create()
    project.stop()
    done = app.vm_extend(project.session, "2h", "dev")
    assert (done.exit_code, done.document["changed"]) == (0, True)
    assert done.text == "dev: 10h00m from its next start; 8h00m from later ones"
    (sent,) = [call.body for call in project.cloud.emulator.calls if call.api == "instances.setScheduling"]
    assert sent is not None
    assert sent["maxRunDuration"] == {"seconds": str(10 * 3600)}
    assert (sent["onHostMaintenance"], sent["automaticRestart"], sent["instanceTerminationAction"]) == ("TERMINATE", True, "STOP")
    starts: list[Callable[[], Done]] = [lambda: app.vm_start(project.session, "dev", patience=QUICK), project.create]
    for start in starts:
        assert ttl_of(project) == 10 * 3600
        assert start().exit_code == 0
        project.stop()
    assert ttl_of(project) == 8 * 3600, "taken back before the second start"
    assert project.notes.count("dev: its time limit is 8h again, as before it was extended") == 1


def test_the_limit_of_a_running_vm_is_changed_while_it_is_stopped(project: Project) -> None:
    """As the API documents it: setScheduling "on a stopped instance" only. The refusal is verbatim, and what can be done stands below."""
    project.create()
    with pytest.raises(CloudError) as caught:
        app.vm_extend(project.session, "2h", "dev")
    assert caught.value.exit_code == EXIT_CLOUD
    assert caught.value.fix.startswith("invoke vm.extend 2h --name dev --restart")
    assert project.cloud.emulator.counted().count("instances.setScheduling") == 1
    assert project.listed() == [("dev", "RUNNING")]

    done = app.vm_extend(project.session, "2h", "dev", restart=True, patience=QUICK)
    assert (done.exit_code, done.document["changed"]) == (0, True)
    assert set(statuses(done).values()) <= {"ok", "changed"}
    left_s = done.document["vms"][0]["ttl_left_s"]
    assert 10 * 3600 - 120 < left_s <= 10 * 3600, "what it had left, and two hours"
    assert done.text.endswith(" left; 8h00m from its next start")
    project.stop()
    assert app.vm_start(project.session, "dev", patience=QUICK).exit_code == 0
    assert ttl_of(project) == 8 * 3600


def test_time_that_cannot_be_had(project: Project) -> None:
    for wrong in ("soon", "none", "5s"):
        with pytest.raises(UsageError):
            app.vm_extend(project.session, wrong, "dev")
    project.settings = project.settings.model_copy(update={"ttl": "none"})
    project.create()
    calls(project)
    done = app.vm_extend(project.session, "2h", "dev")
    assert (done.document["changed"], done.text, calls(project)) == (False, "dev: no change", ["instances.aggregatedList"])
    assert "dev has no time limit: nothing to extend" in project.notes


def test_more_time_than_the_cloud_takes(project: Project) -> None:
    project.create()
    project.stop()
    with pytest.raises(UsageError, match="too long") as caught:
        app.vm_extend(project.session, "120d", "dev")
    assert "at most 120 days" in caught.value.why
