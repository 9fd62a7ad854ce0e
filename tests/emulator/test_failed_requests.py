"""Every call of create and delete with every fault: the exit code is right, and the world holds exactly the VMs that the journal says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import create_vm
from provision.cloud.lifecycle.delete import delete_vms_by_name
from provision.cloud.lifecycle.journal import GONE, LEFT_BEHIND, MADE, Journal
from provision.core.errors import EXIT_CLOUD, EXIT_LEFT_BEHIND, EXIT_OK, ProvisionError
from provision.core.model import VmSpec
from provision.testing.compute import (
    ComputeEmulator,
    Fault,
    FaultKind,
    NullBackend,
    SimulatedClock,
    html_502,
    http_error,
    stock_out,
)
from tests.emulator.test_killed_runs import KILLED
from tests.emulator.test_killed_runs import NEXT as FOLLOWING

MakeSpec = Callable[..., VmSpec]
ZONES = ("us-central1-a", "us-central1-b")
ATTEMPTS = 3
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

CALLS = (
    "instances.aggregatedList",
    "acceleratorTypes.aggregatedList",
    "projects.get",
    "regions.get",
    "images.getFromFamily",
    "instances.insert",
    "zoneOperations.wait",
    "zoneOperations.list",
    "instances.get",
    "instances.delete",
)
FAULTS: dict[str, Fault] = {
    "reset before": Fault(kind=FaultKind.RESET_BEFORE),
    "reset after": Fault(kind=FaultKind.RESET_AFTER),
    "time-out before": Fault(kind=FaultKind.MUTE_BEFORE),
    "time-out after": Fault(kind=FaultKind.MUTE_AFTER),
    "429": http_error(429, "rateLimitExceeded", "Too many"),
    "500": http_error(500, "backendError", "Backend Error"),
    "503": http_error(503, "backendError", "Unavailable"),
    "page of a proxy": html_502(),
    "malformed": Fault(kind=FaultKind.BODY, text="{"),
    "malformed after": Fault(kind=FaultKind.BODY_AFTER, text="{"),
    "empty": Fault(kind=FaultKind.BODY, text="{}"),
    "empty after": Fault(kind=FaultKind.BODY_AFTER, text="{}"),
}
TIMES = (1, ATTEMPTS, None)
"""Once; as often as a request is sent; for ever."""
ENDS = frozenset({EXIT_OK, EXIT_CLOUD, EXIT_LEFT_BEHIND})
"""The exit codes of the page."""
COMMANDS = ("create", "create, first zone empty", "delete")


class Luck(NamedTuple):
    """One combination."""

    command: str
    call: str
    fault: str
    times: int | None


MATRIX = tuple(Luck(*each) for each in product(COMMANDS, CALLS, FAULTS, TIMES))
SOME = tuple(
    luck
    for luck in MATRIX
    if luck.command == "create, first zone empty"
    and luck.times is None
    and luck.fault == "reset after"
)
"""A part that `make test` runs: each call of the longest command, its answer lost for ever."""


@dataclass
class World:
    """An emulator, what a command works with, and the means to look at both."""

    emulator: ComputeEmulator
    context: CloudContext
    journal: Journal
    spec: VmSpec

    def there(self) -> set[tuple[str, str]]:
        return {
            (instance["name"], instance["zone"].rsplit("/", 1)[-1])
            for instance in self.emulator.instances("demo")
        }

    def known(self, *states: str) -> set[tuple[str, str]]:
        return {
            (entry.name, entry.zone)
            for entry in self.journal.open()
            if not states or entry.state in states
        }

    def run(self, command: str) -> ProvisionError | None:
        try:
            if command == "delete":
                delete_vms_by_name(self.context, "dev", "me")
            else:
                create_vm(self.context, self.spec, ZONES)
        except ProvisionError as error:
            return error
        return None


@contextmanager
def world(folder: Path, spec: VmSpec) -> Iterator[World]:
    clock = SimulatedClock()
    with ComputeEmulator(NullBackend(), clock=clock) as emulator:
        limits = {"attempts": ATTEMPTS, "request_timeout_s": 0.05, "server_wait_s": 0.0}
        cloud = GceCloud("demo", emulator.endpoint, now=clock.now, sleep=clock.sleep, **limits)
        journal = Journal(folder / "journal.jsonl", "demo")
        yield World(
            emulator,
            CloudContext(cloud=cloud, journal=journal, emit=lambda event: None, sleep=clock.sleep),
            journal,
            spec,
        )
        cloud.close()


def suffer(folder: Path, spec: VmSpec, luck: Luck) -> int:
    """Run the command under its fault, look at exit code, world and journal, then delete; the exit code."""
    with world(folder, spec) as here:
        if luck.command == "delete":
            assert here.run("create") is None
        fault = replace(FAULTS[luck.fault], call=luck.call, times=luck.times)
        here.emulator.faults.add(
            fault, *([stock_out(ZONES[0], leaves_vm=True)] if "empty" in luck.command else [])
        )
        failure = here.run(luck.command)
        code = EXIT_OK if failure is None else failure.exit_code
        there, known = here.there(), here.known()
        assert there <= known, f"an orphan: {there - known}"
        assert here.known(MADE) <= there
        if code == EXIT_OK:
            assert (
                there
                == known - here.known("unsure")
                == (set() if luck.command == "delete" else here.known(MADE))
            )
        elif code == EXIT_LEFT_BEHIND:
            assert failure is not None
            zone, name = failure.where.split("/")
            assert (name, zone) in here.known(LEFT_BEHIND)
        else:
            assert code == EXIT_CLOUD
            assert there == here.known(MADE) if luck.command == "delete" else there == set()
        if luck.times == 1:
            assert code == EXIT_OK
        here.emulator.faults.clear()
        assert here.run("delete") is None
        assert (here.there(), here.known()) == (set(), set())
        assert {entry.state for entry in here.journal.entries()} <= {GONE}
        return code


def name_of(luck: Luck) -> str:
    return f"{luck.command}-{luck.call}-{luck.fault}-{luck.times or 'ever'}"


@pytest.mark.parametrize("luck", SOME, ids=name_of)
def test_faulty_call_leaves_no_unjournalled_vm(
    luck: Luck, make_spec: MakeSpec, tmp_path: Path
) -> None:
    assert suffer(tmp_path, make_spec(), luck) in ENDS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_faulty_call_leaves_no_unjournalled_vm(
    command: str, call: str, make_spec: MakeSpec, tmp_path: Path
) -> None:
    codes = Counter(
        suffer(tmp_path / str(number), make_spec(), luck)
        for number, luck in enumerate(MATRIX)
        if (luck.command, luck.call) == (command, call)
    )
    assert codes.total() == len(FAULTS) * len(TIMES)
    assert set(codes) <= ENDS


def test_fault_matrix_covers_every_call_of_create_and_delete(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    """Whatever they send, on their best day and after a lost answer, is in the matrix."""
    with world(tmp_path, make_spec()) as here:
        lost = Fault(
            kind=FaultKind.RESET_AFTER, call="instances.insert", zone=ZONES[1], times=ATTEMPTS
        )
        here.emulator.faults.add(stock_out(ZONES[0], leaves_vm=True), lost)
        assert here.run("create") is None
        assert here.run("delete") is None
        assert set(here.emulator.counted()) == set(CALLS)


def test_reliability_page_has_the_counted_figures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"(?m)^\| ([^|`]+?) +\| ([\d,]+) \|", text))
    assert rows == {
        "commands, calls, faults, and how often": f"{len(MATRIX):,}",
        "runs killed, each settled by the next command": f"{2 * sum(KILLED.values()) * len(FOLLOWING):,}",
        "VMs that no journal named": "0",
    }
