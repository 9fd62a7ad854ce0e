"""Several zones asked at once, with every order of answers: one VM is kept and journalled."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, permutations, product
from pathlib import Path
from typing import Any

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.api.labels import OWNER_LABEL
from provision.cloud.api.protocol import OperationResult
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import Created, create_vm
from provision.cloud.lifecycle.journal import LEFT_BEHIND, MADE, Journal
from provision.cloud.lifecycle.race import Finish, race
from provision.cloud.refusal import CONNECTION_LOST, CloudRefused, Refusal
from provision.core.errors import CleanupFailed, CloudAuthError, CloudError, NoCapacity
from provision.core.model import Vm, VmSpec
from tests.specs import T4, vm_spec

ZONES = ("us-central1-a", "us-central1-b", "us-east1-c")
OUTCOMES = ("made", "refused", "lost, made", "lost")
SPEC = vm_spec(**T4, ttl_s=3600, labels={OWNER_LABEL: "me"})


class Scripted(GceCloud):
    """A cloud whose inserts end in a scripted order with scripted outcomes; it sends nothing."""

    def __init__(
        self, outcomes: Mapping[str, str], order: Sequence[str], broken: Sequence[str] = ()
    ) -> None:
        super().__init__("demo", "http://127.0.0.1:9")
        self.vms: dict[str, Vm] = {}
        self.most = 0
        self._outcomes = outcomes
        self._broken = broken
        self._begun = threading.Barrier(len(order))
        self._turns = {zone: threading.Event() for zone in order}
        self._after = dict(zip(order, [*order[1:], None], strict=True))
        self._turns[order[0]].set()

    def zones_offering(self, gpu: str | None) -> Sequence[str]:
        return ZONES

    def quotas(self, regions: Sequence[str], *, regional: bool = False) -> Any:
        raise CloudError("not known")

    def list(self, labels: Mapping[str, str]) -> Sequence[Vm]:
        return [*self.vms.values()]

    def create(self, spec: VmSpec, zone: str, *, request_id: str) -> Vm:
        self._begun.wait(10)
        assert self._turns[zone].wait(10)
        outcome = self._outcomes[zone]
        try:
            if "made" in outcome:
                self.vms[zone] = Vm(
                    name=spec.name,
                    zone=zone,
                    status="RUNNING",
                    machine_type="m",
                    instance_id=zone,
                    labels=spec.labels,
                )
                self.most = max(self.most, len(self.vms))
            if outcome == "refused":
                raise CloudRefused(
                    "no",
                    refusal=Refusal(
                        code="ZONE_RESOURCE_POOL_EXHAUSTED", message="none", final=True
                    ),
                )
            if "not let in" in outcome:
                raise CloudAuthError("the credentials were not accepted")
            if "lost" in outcome:
                raise CloudRefused("no", refusal=Refusal(code=CONNECTION_LOST, message="reset"))
            return self.vms[zone]
        finally:
            following = self._after[zone]
            if following is not None:
                self._turns[following].set()

    def operation_result(self, zone: str, request_id: str) -> OperationResult | None:
        return OperationResult() if zone in self.vms else None

    def get(self, name: str, zone: str) -> Vm | None:
        return self.vms.get(zone)

    def delete(self, name: str, zone: str, *, request_id: str) -> bool:
        if zone in self._broken:
            raise CloudRefused(
                "no", refusal=Refusal(code="backendError", message="no", http_status=503)
            )
        return self.vms.pop(zone, None) is not None


def run(cloud: Scripted, folder: Path) -> tuple[CloudContext, Created | Exception]:
    context = CloudContext(
        cloud=cloud, journal=Journal(folder / "journal.jsonl", "demo"), emit=lambda event: None
    )
    try:
        return context, create_vm(context, SPEC, ZONES, width=3)
    except (NoCapacity, CleanupFailed, CloudAuthError, CloudRefused) as error:
        return context, error


def interleavings() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    yield from product(permutations(ZONES), product(OUTCOMES, repeat=3))


@pytest.mark.slow
def test_every_interleaving_keeps_one_journalled_vm(tmp_path: Path) -> None:
    number = count()
    most = 0
    for order, outcomes in interleavings():
        cloud = Scripted(dict(zip(ZONES, outcomes, strict=True)), order)
        context, ended = run(cloud, tmp_path / str(next(number)))
        most = max(most, cloud.most)
        states = [
            (entry.state, entry.zone) for entry in context.journal.open() if entry.state != "unsure"
        ]
        if any("made" in outcome for outcome in outcomes):
            assert isinstance(ended, Created)
            assert [*cloud.vms] == [ended.vm.zone]
            assert states == [(MADE, ended.vm.zone)]
            assert {attempt.zone for attempt in ended.tried} == set(ZONES)
        else:
            assert isinstance(ended, NoCapacity)
            assert (cloud.vms, states) == ({}, [])
    assert next(number) == 6 * 4**3
    assert most > 1  # several did exist for a moment


@pytest.mark.parametrize("order", [*permutations(ZONES)])
def test_vm_of_one_zone_is_kept_when_another_zone_fails(
    order: tuple[str, ...], tmp_path: Path
) -> None:
    """The VM of the failed zone is deleted, and the VM that was kept is returned."""
    outcomes = dict(zip(ZONES, ("made, not let in", "made", "not let in"), strict=True))
    context, ended = run(cloud := Scripted(outcomes, order), tmp_path)
    assert isinstance(ended, Created)
    assert ([*cloud.vms], ended.vm.zone) == ([ZONES[1]], ZONES[1])
    assert [(entry.state, entry.zone) for entry in context.journal.open()] == [(MADE, ZONES[1])]
    assert {attempt.zone for attempt in ended.tried} == set(ZONES)


def test_error_of_a_zone_is_raised_when_no_zone_wins(tmp_path: Path) -> None:
    cloud = Scripted(dict(zip(ZONES, ("not let in", "refused", "refused"), strict=True)), ZONES)
    assert isinstance(run(cloud, tmp_path)[1], CloudAuthError)


def test_cleanup_failure_is_raised_before_other_errors() -> None:
    def one(zone: str, finish: Finish[str]) -> None:
        raise CleanupFailed("left") if zone == "b" else CloudAuthError("no")

    with pytest.raises(CleanupFailed):
        race(one, ["a", "b", "c"])


@pytest.mark.parametrize("order", [*permutations(ZONES)])
def test_cleanup_failure_also_reports_the_kept_vm(order: tuple[str, ...], tmp_path: Path) -> None:
    cloud = Scripted(dict.fromkeys(ZONES, "made"), order, broken=ZONES)
    context, ended = run(cloud, tmp_path)
    assert isinstance(ended, CleanupFailed)
    assert ended.exit_code == 6
    (kept,) = [entry.zone for entry in context.journal.open() if entry.state == MADE]
    assert f"dev was made in {kept} and kept: it bills as well" in ended.why
    left = {entry.zone for entry in context.journal.open() if entry.state == LEFT_BEHIND}
    assert left == set(ZONES) - {kept}
    assert set(cloud.vms) == set(ZONES)


def test_race_waits_for_all_zones_before_raising() -> None:
    seen: list[str] = []

    def one(zone: str, finish: Finish[Any]) -> None:
        seen.append(zone)
        if zone == "b":
            raise ValueError(zone)
        finish.offer(zone)

    with pytest.raises(ValueError, match="b"):
        race(one, ["a", "b", "c"])
    assert sorted(seen) == ["a", "b", "c"]
