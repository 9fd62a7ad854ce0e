"""The engine on a scripted transport: what it sends, what it reports, in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.core.engine import converge
from provision.core.errors import (
    CommandFailed,
    CommandTimeout,
    NotConverged,
    ProbeUnreadable,
    ProvisionError,
    RecipeError,
    Unreachable,
)
from provision.core.model import (
    Change,
    Facts,
    HostReport,
    OutputLine,
    ResourceFinished,
    ResourceStarted,
    State,
    Status,
)
from provision.core.resource import Resource
from provision.core.shell import Script, script
from tests.unit.scripted import Clock, FakeHost, Item, Log, ScriptedTransport, outcome, statuses

OK, CHANGED, FAILED, SKIPPED, UNKNOWN = (
    Status.OK,
    Status.CHANGED,
    Status.FAILED,
    Status.SKIPPED,
    Status.UNKNOWN,
)


def run(
    transport: ScriptedTransport, *resources: Resource, check: bool = False, log: Log | None = None
) -> HostReport:
    return converge(transport, resources, log or Log(), clock=transport.fake.clock, check=check)


def on(fake: FakeHost) -> ScriptedTransport:
    return ScriptedTransport(fake)


# --- exchanges ------------------------------------------------------------------------------------


def test_run_without_changes_takes_one_exchange() -> None:
    transport = on(FakeHost({"a": "new", "b": "new"}))
    report = run(transport, Item(name="a"), Item(name="b", needs=("a",)))
    assert statuses(report) == {"a": OK, "b": OK}
    assert report.round_trips == len(transport.jobs) == 1
    assert transport.jobs[0].keys == ["f", "p0", "p1"]
    assert transport.puts == 0
    assert not report.failed


def test_each_changed_wave_takes_one_more_exchange() -> None:
    transport = on(FakeHost({"b": "new"}))
    items = [
        Item(name="a"),
        Item(name="b", needs=("a",)),
        Item(name="c", needs=("b",)),
        Item(name="d"),
    ]
    report = run(transport, *items)
    assert statuses(report) == {"a": CHANGED, "b": OK, "c": CHANGED, "d": CHANGED}
    assert [job.keys for job in transport.jobs] == [
        ["f", "p0", "p1", "p2", "p3"],
        ["e0", "p0", "f", "p1", "p2"],
        ["e2", "p2", "e3", "p3", "f"],
    ]
    assert transport.fake.values == {"a": "new", "b": "new", "c": "new", "d": "new"}


def test_empty_recipe_reads_the_facts() -> None:
    report = run(on(FakeHost({"kernel": "6.6"})))
    assert report.round_trips == 1
    assert report.facts == Facts(os_id="fake", kernel="6.6")


def test_ensure_sections_are_gated_and_merged() -> None:
    transport = on(FakeHost())
    run(transport, Item(name="a", timeout_s=7, probe_timeout_s=3))
    probe, ensure = transport.jobs[0].sections[1], transport.jobs[1].sections[0]
    assert (probe.gate, probe.merge, probe.timeout_s) == (False, False, 3.0)
    assert (ensure.gate, ensure.merge, ensure.timeout_s) == (True, True, 7.0)
    assert ensure.body.startswith("set -eu\n")
    assert probe.body.startswith("set -u\n")


def test_channel_timeout_exceeds_the_sum_of_section_timeouts() -> None:
    transport = on(FakeHost())
    run(transport, Item(name="a", timeout_s=1000, probe_timeout_s=3))
    assert transport.limits[0] > 33
    assert transport.limits[1] > 1033


def test_contradictory_recipe_is_refused_before_the_first_exchange() -> None:
    transport = on(FakeHost())
    with pytest.raises(RecipeError, match="does not come earlier"):
        run(transport, Item(name="a", needs=("b",)), Item(name="b"))
    assert transport.jobs == []


# --- check ----------------------------------------------------------------------------------------


def test_check_reports_changes_and_writes_nothing() -> None:
    transport = on(FakeHost({"a": "old", "b": "new"}))
    report = run(transport, Item(name="a"), Item(name="b"), check=True)
    assert statuses(report) == {"a": CHANGED, "b": OK}
    assert outcome(report, "a").diff == (Change("value", "old", "new"),)
    assert (transport.puts, report.round_trips) == (0, 1)
    assert transport.fake.values["a"] == "old"


def test_check_reports_dependents_of_a_change_as_unknown() -> None:
    items = [
        Item(name="a"),
        Item(name="b", needs=("a",)),
        Item(name="c", needs=("b",)),
        Item(name="d"),
    ]
    report = run(on(FakeHost({"b": "new", "c": "new", "d": "new"})), *items, check=True)
    assert statuses(report) == {"a": CHANGED, "b": UNKNOWN, "c": UNKNOWN, "d": OK}
    assert outcome(report, "b").note == "depends on a, which would change"


def test_check_reports_that_a_handler_would_run() -> None:
    items = [
        Item(name="a"),
        Item(name="b", on_change_of=("a",)),
        Item(name="c", on_change_of=("b",)),
    ]
    report = run(on(FakeHost({"b": "new", "c": "new"})), *items, check=True)
    assert statuses(report) == {"a": CHANGED, "b": CHANGED, "c": CHANGED}
    assert outcome(report, "b").note == "because a would change"


def test_check_continues_after_a_failed_resource() -> None:
    items = [Item(name="gpu", fixed=True), Item(name="driver", needs=("gpu",)), Item(name="other")]
    report = run(on(FakeHost()), *items, check=True)
    assert statuses(report) == {"gpu": FAILED, "driver": SKIPPED, "other": CHANGED}
    assert report.failed


# --- handlers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("needs", [(), ("a",)])
def test_handler_runs_when_its_cause_changed(needs: tuple[str, ...]) -> None:
    transport = on(FakeHost({"b": "new"}))
    report = run(transport, Item(name="a"), Item(name="b", needs=needs, on_change_of=("a",)))
    assert statuses(report) == {"a": CHANGED, "b": CHANGED}
    assert transport.fake.puts == ["a", "b"]
    assert outcome(report, "b").diff == ()
    handler = transport.jobs[-1].sections[0]
    assert "because=a" in handler.words


def test_handler_does_not_run_when_its_cause_did_not_change() -> None:
    transport = on(FakeHost({"a": "new", "b": "new"}))
    report = run(transport, Item(name="a"), Item(name="b", on_change_of=("a",)))
    assert statuses(report) == {"a": OK, "b": OK}
    assert transport.fake.puts == []


def test_handler_that_differs_by_itself_gets_no_cause() -> None:
    transport = on(FakeHost({"a": "new"}))
    run(transport, Item(name="a"), Item(name="b", on_change_of=("a",)))
    assert "because=" in transport.jobs[1].sections[0].words


def test_handler_without_ensure_is_ok_after_its_cause_changed() -> None:
    report = run(
        on(FakeHost({"b": "new"})), Item(name="a"), Item(name="b", fixed=True, on_change_of=("a",))
    )
    assert statuses(report) == {"a": CHANGED, "b": OK}


# --- facts ----------------------------------------------------------------------------------------


def test_desired_state_uses_facts_changed_by_an_earlier_wave() -> None:
    transport = on(FakeHost({"kernel": "5", "module": "5"}))
    items = [
        Item(name="kernel", value="6"),
        Item(name="module", from_kernel=True, needs=("kernel",)),
    ]
    report = run(transport, *items)
    assert statuses(report) == {"kernel": CHANGED, "module": CHANGED}
    assert transport.fake.values == {"kernel": "6", "module": "6"}
    assert report.facts is not None
    assert report.facts.kernel == "6"
    assert run(transport, *items).round_trips == 1


# --- what should be absent ------------------------------------------------------------------------


def test_absent_resource_that_should_be_absent_is_ok() -> None:
    assert statuses(run(on(FakeHost()), Item(name="a", absent=True))) == {"a": OK}


def test_resource_that_stays_although_it_should_be_absent_fails() -> None:
    report = run(on(FakeHost({"a": "x"})), Item(name="a", absent=True))
    assert statuses(report) == {"a": FAILED}
    assert isinstance(outcome(report, "a").error, NotConverged)


# --- failures -------------------------------------------------------------------------------------


def test_failure_skips_the_remaining_resources() -> None:
    fake = FakeHost({"e": "new"}, failing={"b": (3, "line 1\nno space\n")})
    transport = on(fake)
    items = [
        Item(name="a"),
        Item(name="b"),
        Item(name="c"),
        Item(name="d", needs=("c",)),
        Item(name="e", needs=("d",)),
        Item(name="f"),
    ]
    report = run(transport, *items)
    assert statuses(report) == {
        "a": CHANGED,
        "b": FAILED,
        "c": SKIPPED,
        "d": SKIPPED,
        "e": SKIPPED,
        "f": SKIPPED,
    }
    error = outcome(report, "b").error
    assert isinstance(error, CommandFailed)
    assert (error.what, error.where, error.why) == (
        "the change failed with status 3",
        "fake: b",
        "line 1\nno space",
    )
    assert outcome(report, "c").note == "an earlier resource failed"
    assert outcome(report, "d").note == "what it depends on failed"
    assert fake.puts == ["a", "b"]
    assert report.round_trips == 2
    assert report.failed
    assert report.error is None


def test_verified_resource_stays_ok_after_a_failure() -> None:
    report = run(on(FakeHost({"b": "new"}, failing={"a": (1, "")})), Item(name="a"), Item(name="b"))
    assert statuses(report) == {"a": FAILED, "b": OK}
    assert "it printed nothing" in str(outcome(report, "a").error)


def test_resource_that_still_differs_after_ensure_fails() -> None:
    report = run(
        on(FakeHost({"a": "old"}, stuck={"a"}, prints={"a": "done!\n"})),
        Item(name="a", means="it is stuck"),
    )
    error = outcome(report, "a").error
    assert statuses(report) == {"a": FAILED}
    assert isinstance(error, NotConverged)
    assert error.what == "it is stuck (done!, {'value': 'old'})"
    assert (error.why, error.fix) == ("value: old -> new", "try this")


def test_failure_carries_the_diagnosis_of_its_resource() -> None:
    error = outcome(
        run(on(FakeHost(failing={"a": (1, "E42\n")})), Item(name="a", means="lock")), "a"
    ).error
    assert isinstance(error, CommandFailed)
    assert (error.what, error.why, error.fix) == ("lock (E42, None)", "E42", "try this")


def test_differing_resource_without_ensure_fails_in_the_first_exchange() -> None:
    transport = on(FakeHost({"a": "none"}))
    report = run(
        transport, Item(name="a", fixed=True, means="no GPU"), Item(name="b", needs=("a",))
    )
    assert statuses(report) == {"a": FAILED, "b": SKIPPED}
    assert isinstance(outcome(report, "a").error, NotConverged)
    assert outcome(report, "a").diff == (Change("value", "none", "new"),)
    assert report.round_trips == 1


def test_unreadable_probe_fails_only_its_resource() -> None:
    report = run(
        on(FakeHost({"b": "new"}, garbage={"a": "boom\n"})),
        Item(name="a"),
        Item(name="b"),
        Item(name="c", needs=("a",)),
    )
    assert statuses(report) == {"a": FAILED, "b": OK, "c": SKIPPED}
    error = outcome(report, "a").error
    assert isinstance(error, ProbeUnreadable)
    assert "IndexError" in error.why
    assert "boom" in error.why


def test_failed_probe_reports_its_output() -> None:
    transport = on(FakeHost(unreadable={"a": (2, "")}))
    transport.stderr = b"sh: stat: not found\n"
    error = outcome(run(transport, Item(name="a")), "a").error
    assert isinstance(error, CommandFailed)
    assert (error.what, error.why) == ("the probe failed with status 2", "sh: stat: not found")


def test_failed_second_probe_reports_its_output() -> None:
    fake = FakeHost()

    class Breaks(ScriptedTransport):
        def exchange(self, *words: object, **more: object) -> int:
            if self.jobs:
                fake.unreadable["a"] = (2, "")
                self.stderr = b"sh: stat: not found\n"
            return super().exchange(*words, **more)  # type: ignore[arg-type]

    report = run(Breaks(fake), Item(name="a"))
    assert statuses(report) == {"a": FAILED}
    assert "stat: not found" in str(outcome(report, "a").error)


def test_probe_that_becomes_readable_is_compared() -> None:
    class Heals(Item):
        def ensure(self, facts: Facts) -> Script | None:
            fake.garbage.clear()
            return super().ensure(facts)

    fake = FakeHost(garbage={"b": "boom\n"})
    report = run(on(fake), Heals(name="a"), Item(name="b", needs=("a",)))
    assert statuses(report) == {"a": CHANGED, "b": CHANGED}


class Broken(Item):
    """A user's resource one of whose methods raises an exception."""

    def read(self, text: str) -> State | None:
        self._fail("read")
        return super().read(text)

    def desired(self, facts: Facts) -> State | None:
        self._fail("desired")
        return super().desired(facts)

    def ensure(self, facts: Facts) -> Script | None:
        self._fail("ensure")
        return super().ensure(facts)

    def _fail(self, where: str) -> None:
        if self.means == where:
            raise AttributeError("a mistake")


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("method", ["read", "desired", "ensure"])
def test_exception_in_a_resource_fails_only_that_resource(method: str, *, check: bool) -> None:
    report = run(
        on(FakeHost({"b": "new"})), Broken(name="a", means=method), Item(name="b"), check=check
    )
    assert statuses(report) == {"a": FAILED, "b": OK}
    error = outcome(report, "a").error
    assert isinstance(error, ProvisionError)
    assert "AttributeError: a mistake" in error.why
    assert error.where == "fake: a"


def test_ensure_that_exceeds_its_timeout_is_reported_as_timeout() -> None:
    fake = FakeHost(slow={"a": 500.0}, prints={"a": "downloading\n"})
    report = run(on(fake), Item(name="a", timeout_s=90), Item(name="b"))
    assert statuses(report) == {"a": FAILED, "b": SKIPPED}
    error = outcome(report, "a").error
    assert isinstance(error, CommandTimeout)
    assert error.why == "no end after 90 s\ndownloading"
    assert outcome(report, "a").seconds == pytest.approx(90.0)


def test_early_exit_with_status_124_is_not_a_timeout() -> None:
    error = outcome(run(on(FakeHost(failing={"a": (124, "x")})), Item(name="a")), "a").error
    assert isinstance(error, CommandFailed)


# --- the way to the host --------------------------------------------------------------------------


def test_failed_facts_leave_every_resource_unknown() -> None:
    transport = ScriptedTransport(FakeHost({"a": "new"}, facts_status=1))
    transport.stderr = b"getconf: not found"
    report = run(transport, Item(name="a"))
    assert statuses(report) == {"a": UNKNOWN}
    assert "getconf: not found" in str(report.error)
    assert report.failed


def test_unreachable_host_leaves_every_resource_unknown() -> None:
    transport = ScriptedTransport(FakeHost(), error=Unreachable("no route", where="fake"))
    report = run(transport, Item(name="a"))
    assert statuses(report) == {"a": UNKNOWN}
    assert report.error is transport.error
    assert outcome(report, "a").note == "not read"


@pytest.mark.parametrize(
    "stderr",
    [
        "sudo: a password is required\n",
        "sudo: a terminal is required to read the password\nsudo: a password is required\n",
        "Sorry, user me may not run sudo on host.\n",
        "me is not in the sudoers file.\n",
        "Sorry, user me is not allowed to execute '/bin/sh -c x' as root on host.\nsudo: policy\n",
    ],
)
def test_sudo_refusal_names_the_sudoers_line_to_add(stderr: str) -> None:
    transport = ScriptedTransport(FakeHost(), stderr=stderr.encode(), status=1, become="sudo")
    report = run(transport, Item(name="a"))
    assert statuses(report) == {"a": UNKNOWN}
    assert isinstance(report.error, CommandFailed)
    assert report.error.what == "sudo refuses to run the script without a password"
    assert "me ALL=(ALL) NOPASSWD: ALL" in report.error.fix
    assert stderr.strip().splitlines()[-1] in report.error.why


@pytest.mark.parametrize(("status", "stderr"), [(127, ""), (126, ""), (2, "sh: setsid: not found")])
def test_script_that_cannot_run_is_reported(status: int, stderr: str) -> None:
    transport = ScriptedTransport(FakeHost(), stderr=stderr.encode(), status=status)
    report = run(transport, Item(name="a"))
    assert isinstance(report.error, CommandFailed)
    assert report.error.what == "the script could not run"
    assert f"exit status {status}" in report.error.why
    assert stderr in report.error.why


def test_killed_script_is_reported_as_unreachable() -> None:
    report = run(ScriptedTransport(FakeHost(), status=137), Item(name="a"))
    assert isinstance(report.error, Unreachable)


def test_login_shell_output_is_ignored() -> None:
    transport = ScriptedTransport(
        FakeHost({"a": "new"}), before=b"Welcome!\nvalue=other\n\n:12: begin p0\n"
    )
    assert statuses(run(transport, Item(name="a"))) == {"a": OK}


def test_failure_before_a_lost_connection_is_reported() -> None:
    fake = FakeHost(failing={"a": (3, "E42\n")})
    whole = on(fake)
    run(whole, Item(name="a"))
    after_the_failure = whole.delivered[1].index(b" end e0 3\n") + len(" end e0 3\n")
    transport = ScriptedTransport(fake, cut_at=len(whole.delivered[0]) + after_the_failure)
    report = run(transport, Item(name="a"))
    assert statuses(report) == {"a": FAILED}
    assert "E42" in str(outcome(report, "a").error)
    assert isinstance(report.error, Unreachable)


def test_resource_not_begun_at_a_lost_connection_is_not_started() -> None:
    whole = on(FakeHost())
    run(whole, Item(name="a"), Item(name="b"))
    in_the_middle = whole.delivered[1].index(b" begin e1")
    transport = ScriptedTransport(FakeHost(), cut_at=len(whole.delivered[0]) + in_the_middle)
    report = run(transport, Item(name="a"), Item(name="b"))
    assert statuses(report) == {"a": CHANGED, "b": UNKNOWN}
    assert outcome(report, "b").note == "not started"


def test_unreadable_resource_is_unknown_after_an_interrupted_exchange() -> None:
    items = [Item(name="a"), Item(name="b", needs=("a",))]
    whole = on(FakeHost(garbage={"b": "boom\n"}))
    assert statuses(run(whole, *items)) == {"a": CHANGED, "b": FAILED}
    before_the_second_probe_of_b = len(whole.delivered[0]) + whole.delivered[1].index(b" begin p1")
    transport = ScriptedTransport(
        FakeHost(garbage={"b": "boom\n"}), cut_at=before_the_second_probe_of_b
    )
    assert statuses(run(transport, *items)) == {"a": CHANGED, "b": UNKNOWN}


class Pair(Item):
    """Two values of which only one can be changed."""

    def read(self, text: str) -> State | None:
        return {"first": text.strip(), "second": "old"}

    def desired(self, facts: Facts) -> State | None:
        return {"first": "value=new", "second": "new"}


def test_not_converged_resource_reports_the_remaining_difference() -> None:
    report = run(on(FakeHost({"a": "old"})), Pair(name="a"))
    assert [change.key for change in outcome(report, "a").diff] == ["second"]
    assert str(outcome(report, "a").error).count("->") == 1


# --- events ---------------------------------------------------------------------------------------


def test_events_are_emitted_in_the_order_of_the_run() -> None:
    log = Log()
    fake = FakeHost({"b": "new"}, prints={"a": "one\rtwo\nthree", "c": "four\n"})
    run(on(fake), Item(name="a"), Item(name="b"), Item(name="c"), log=log)
    reported = [
        (
            type(event).__name__,
            getattr(event, "resource", None)
            or getattr(event, "text", "")
            or event.outcome.resource,  # type: ignore[union-attr]
        )
        for event in log.events
    ]
    assert reported == [
        ("ResourceFinished", "b"),
        ("ResourceStarted", "a"),
        ("OutputLine", "a"),
        ("OutputLine", "a"),
        ("OutputLine", "a"),
        ("ResourceFinished", "a"),
        ("ResourceStarted", "c"),
        ("OutputLine", "c"),
        ("ResourceFinished", "c"),
    ]
    assert [event.text for event in log.events if isinstance(event, OutputLine)] == [
        "one",
        "two",
        "three",
        "four",
    ]


def test_each_resource_finishes_exactly_once() -> None:
    log = Log()
    fake = FakeHost({"b": "new"}, failing={"c": (1, "")})
    items = [
        Item(name="a"),
        Item(name="b"),
        Item(name="c", needs=("a",)),
        Item(name="d", needs=("c",)),
        Item(name="e"),
    ]
    report = run(on(fake), *items, log=log)
    ended = [event.outcome for event in log.events if isinstance(event, ResourceFinished)]
    assert sorted(found.resource for found in ended) == ["a", "b", "c", "d", "e"]
    assert sorted(ended, key=lambda found: found.resource) == list(report.outcomes)
    assert [event.resource for event in log.events if isinstance(event, ResourceStarted)] == [
        "a",
        "c",
    ]


def test_outcome_seconds_are_measured_per_resource() -> None:
    fake = FakeHost(slow={"a": 5.0, "b": 7.0})
    report = run(on(fake), Item(name="a"), Item(name="b"))
    assert [found.seconds for found in report.outcomes] == [5.0, 7.0]
    assert report.seconds == pytest.approx(12.0)


def test_outcomes_follow_the_order_of_the_recipe() -> None:
    items = [Item(name=name) for name in ("z", "a", "m")]
    assert list(statuses(run(on(FakeHost({"a": "new"})), *items))) == ["z", "a", "m"]


def test_run_seconds_come_from_the_given_clock() -> None:
    clock = Clock(100.0)
    fake = FakeHost(clock=clock, slow={"a": 1.0})
    assert converge(
        on(fake), [replace(Item(name="a"))], Log(), clock=clock
    ).seconds == pytest.approx(1.0)


def test_large_resource_is_sent_on_standard_input() -> None:
    class Large(Item):
        def ensure(self, facts: Facts) -> Script | None:
            return script(
                'host put "$key" "$value" "$ballast"',
                key=self.name,
                value=self.value,
                ballast="x" * 120_000,
            )

    transport = on(FakeHost())
    assert statuses(run(transport, Large(name="a"))) == {"a": CHANGED}
