"""Properties of every run: for any recipe and host, and any byte at which a connection is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.core.engine import converge
from provision.core.errors import Unreachable
from provision.core.model import HostReport, Status
from provision.core.resource import waves
from tests.unit.scripted import FakeHost, Item, Log, ScriptedTransport, statuses

OK, CHANGED, FAILED, SKIPPED, UNKNOWN = (
    Status.OK,
    Status.CHANGED,
    Status.FAILED,
    Status.SKIPPED,
    Status.UNKNOWN,
)

few = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Case:
    """A recipe and the values on a host."""

    items: tuple[Item, ...]
    values: dict[str, str]

    def fake(self) -> FakeHost:
        return FakeHost(dict(self.values))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to seven items with random dependencies; the first may be the kernel that others need."""
    names = ["kernel", *"abcdef"][: draw(st.integers(1, 7))]
    items, values = [], {}
    for number, name in enumerate(names):
        earlier = (
            st.lists(st.sampled_from(names[:number]), unique=True, max_size=2)
            if number
            else st.just([])
        )
        needs, causes = draw(earlier), draw(earlier)
        follows = "kernel" in {*needs, *causes} and draw(st.booleans())
        items.append(
            Item(name=name, needs=tuple(needs), on_change_of=tuple(causes), from_kernel=follows)
        )
        if (value := draw(st.sampled_from(["new", "new", "old", None]))) is not None:
            values[name] = value
    return Case(tuple(items), values)


def run(transport: ScriptedTransport, items: Sequence[Item], *, check: bool = False) -> HostReport:
    return converge(transport, items, Log(), clock=transport.fake.clock, check=check)


def matches(fake: FakeHost, item: Item) -> bool:
    wanted = fake.values.get("kernel", "") if item.from_kernel else item.value
    return fake.values.get(item.name) == wanted


# --- any recipe -----------------------------------------------------------------------------------


@few
@given(cases())
def test_one_run_converges_and_reports_its_changes(case: Case) -> None:
    transport = ScriptedTransport(case.fake())
    report = run(transport, case.items)
    found = statuses(report)
    assert set(found.values()) <= {OK, CHANGED}
    assert [item.name for item in case.items if not matches(transport.fake, item)] == []
    assert sorted(transport.fake.puts) == sorted(
        name for name, status in found.items() if status is CHANGED
    )
    for item in case.items:
        caused = any(found[cause] is CHANGED for cause in item.on_change_of)
        differed = case.values.get(item.name) != transport.fake.values[item.name]
        assert (found[item.name] is CHANGED) is (caused or differed)
    changed_waves = sum(
        any(found[item.name] is CHANGED for item in wave) for wave in waves(case.items)
    )
    assert report.round_trips == len(transport.jobs) == 1 + changed_waves


@few
@given(cases())
def test_second_run_changes_nothing(case: Case) -> None:
    fake = case.fake()
    run(ScriptedTransport(fake), case.items)
    fake.puts.clear()
    report = run(ScriptedTransport(fake), case.items)
    assert set(statuses(report).values()) == {OK}
    assert report.round_trips == 1
    assert fake.puts == []


@few
@given(cases())
def test_check_writes_nothing_and_predicts_the_run(case: Case) -> None:
    checked = ScriptedTransport(case.fake())
    predicted = statuses(run(checked, case.items, check=True))
    assert checked.puts == 0
    assert checked.fake.values == case.values
    assert len(checked.jobs) == 1
    done = statuses(run(ScriptedTransport(case.fake()), case.items))
    for item in case.items:
        if predicted[item.name] is UNKNOWN:
            assert {predicted[name] for name in item.dependencies} & {CHANGED, UNKNOWN}
        else:
            assert predicted[item.name] is done[item.name]


@few
@given(cases(), st.data())
def test_changed_resource_had_its_needs_verified(case: Case, data: st.DataObject) -> None:
    names = [item.name for item in case.items]
    fake = case.fake()
    for name in data.draw(st.lists(st.sampled_from(names), max_size=2, unique=True)):
        fake.failing[name] = (1, "no\n")
    for name in data.draw(st.lists(st.sampled_from(names), max_size=2, unique=True)):
        fake.stuck.add(name)
    found = statuses(run(ScriptedTransport(fake), case.items))
    for item in case.items:
        if found[item.name] in {OK, CHANGED}:
            assert {found[name] for name in item.dependencies} <= {OK, CHANGED}
            assert matches(fake, item)
        if item.name in fake.puts:
            assert {found[name] for name in item.needs} <= {OK, CHANGED}
            assert found[item.name] in {CHANGED, FAILED}
    assert UNKNOWN not in found.values()
    fake.failing.clear()
    fake.stuck.clear()
    assert set(statuses(run(ScriptedTransport(fake), case.items)).values()) <= {OK, CHANGED}
    assert all(matches(fake, item) for item in case.items)


# --- lost connections -----------------------------------------------------------------------------


def verified(transport: ScriptedTransport, number: int) -> bool:
    """True when the last probe of an item that was sent came back completely."""
    last = None
    for job, delivered in zip(transport.jobs, transport.delivered, strict=False):
        keys = job.keys
        if f"p{number}" in keys:
            acted = f"e{number}" in keys
            last = all(
                f"{job.nonce} end {key} 0\n".encode() in delivered
                for key in ([f"e{number}"] if acted else []) + [f"p{number}"]
            )
    return bool(last)


def check_interrupted_run(case: Case, transport: ScriptedTransport, report: HostReport) -> None:
    """An interrupted run reports only what was verified, and the next run converges."""
    found = statuses(report)
    for number, item in enumerate(case.items):
        if found[item.name] in {OK, CHANGED}:
            assert verified(transport, number), (item.name, transport.jobs[-1].keys)
            assert matches(transport.fake, item)
        if found[item.name] is CHANGED:
            assert item.name in transport.fake.puts
    assert set(found.values()) <= {OK, CHANGED, UNKNOWN}
    after = run(ScriptedTransport(transport.fake), case.items)
    assert set(statuses(after).values()) <= {OK, CHANGED}
    assert all(matches(transport.fake, item) for item in case.items)


SMALL = Case(
    (
        Item(name="kernel", value="6"),
        Item(name="a", needs=("kernel",), from_kernel=True),
        Item(name="b"),
        Item(name="c", on_change_of=("a",)),
    ),
    {"kernel": "5", "a": "5", "c": "new"},
)


@pytest.mark.slow
@pytest.mark.parametrize("carries_on", [False, True])
def test_connection_lost_at_every_byte_is_reported_truthfully(*, carries_on: bool) -> None:
    whole = ScriptedTransport(SMALL.fake())
    run(whole, SMALL.items)
    size = sum(map(len, whole.delivered))
    outcomes = set()
    for cut_at in range(size + 1):
        transport = ScriptedTransport(SMALL.fake(), cut_at=cut_at, carries_on=carries_on)
        report = run(transport, SMALL.items)
        assert isinstance(report.error, Unreachable)
        check_interrupted_run(SMALL, transport, report)
        outcomes.add(tuple(statuses(report).values()))
    assert (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN) in outcomes
    assert (CHANGED, CHANGED, CHANGED, CHANGED) in outcomes
    assert (CHANGED, UNKNOWN, UNKNOWN, UNKNOWN) in outcomes
    assert len(outcomes) >= 5


@few
@given(cases(), st.data(), st.booleans(), st.integers(1, 70))
def test_connection_lost_anywhere_in_any_recipe_is_reported_truthfully(
    case: Case, data: st.DataObject, carries_on: bool, chunk: int
) -> None:
    whole = ScriptedTransport(case.fake())
    run(whole, case.items)
    cut_at = data.draw(st.integers(0, sum(map(len, whole.delivered))))
    transport = ScriptedTransport(case.fake(), cut_at=cut_at, carries_on=carries_on, chunk=chunk)
    check_interrupted_run(case, transport, run(transport, case.items))


@pytest.mark.parametrize("cut_at", range(0, 400, 7))
def test_check_with_lost_connection_reports_only_verified_states(cut_at: int) -> None:
    transport = ScriptedTransport(SMALL.fake(), cut_at=cut_at)
    report = run(transport, SMALL.items, check=True)
    assert transport.puts == 0
    for number, (name, status) in enumerate(statuses(report).items()):
        assert status is UNKNOWN or verified(transport, number), name
