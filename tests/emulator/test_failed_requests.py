"""Every call of create and delete with every fault: exit code, VMs and journal agree."""

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
"""How often the fault occurs: once; as often as a request is sent; for ever (None)."""
EXIT_CODES = frozenset({EXIT_OK, EXIT_CLOUD, EXIT_LEFT_BEHIND})
"""The exit codes that docs/reliability.md lists."""
COMMANDS = ("create", "create, first zone empty", "delete")


class FaultCase(NamedTuple):
    """One combination."""

    command: str
    call: str
    fault: str
    times: int | None


MATRIX = tuple(FaultCase(*each) for each in product(COMMANDS, CALLS, FAULTS, TIMES))
SOME = tuple(
    case
    for case in MATRIX
    if case.command == "create, first zone empty"
    and case.times is None
    and case.fault == "reset after"
)
"""The part that `make test` runs: every call of the longest command, with all replies lost."""


@dataclass
class EmulatedRun:
    """An emulator, the context of a command, and the VMs that either knows."""

    emulator: ComputeEmulator
    context: CloudContext
    journal: Journal
    spec: VmSpec

    def existing(self) -> set[tuple[str, str]]:
        return {
            (instance["name"], instance["zone"].rsplit("/", 1)[-1])
            for instance in self.emulator.instances("demo")
        }

    def journalled(self, *states: str) -> set[tuple[str, str]]:
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
def emulated_run(folder: Path, spec: VmSpec) -> Iterator[EmulatedRun]:
    clock = SimulatedClock()
    with ComputeEmulator(NullBackend(), clock=clock) as emulator:
        limits = {"attempts": ATTEMPTS, "request_timeout_s": 0.05, "server_wait_s": 0.0}
        cloud = GceCloud("demo", emulator.endpoint, now=clock.now, sleep=clock.sleep, **limits)
        journal = Journal(folder / "journal.jsonl", "demo")
        yield EmulatedRun(
            emulator,
            CloudContext(cloud=cloud, journal=journal, emit=lambda event: None, sleep=clock.sleep),
            journal,
            spec,
        )
        cloud.close()


class FaultedRun(NamedTuple):
    """The exit code of a command, and how often it sent the call of the fault."""

    exit_code: int
    requests: int


def run_with_fault(folder: Path, spec: VmSpec, case: FaultCase) -> FaultedRun:
    """Run the command with its fault, check exit code, VMs and journal, then delete."""
    with emulated_run(folder, spec) as run:
        if case.command == "delete":
            assert run.run("create") is None
        fault = replace(FAULTS[case.fault], call=case.call, times=case.times)
        run.emulator.faults.add(
            fault, *([stock_out(ZONES[0], leaves_vm=True)] if "empty" in case.command else [])
        )
        sent_before = run.emulator.call_ids().count(case.call)
        failure = run.run(case.command)
        sent = run.emulator.call_ids().count(case.call) - sent_before
        code = check_outcome(run, case, failure)
        run.emulator.faults.clear()
        assert run.run("delete") is None
        assert (run.existing(), run.journalled()) == (set(), set())
        assert {entry.state for entry in run.journal.entries()} <= {GONE}
        return FaultedRun(code, sent)


def check_outcome(run: EmulatedRun, case: FaultCase, failure: ProvisionError | None) -> int:
    """Check that exit code, VMs and journal agree after the command; return the exit code."""
    code = EXIT_OK if failure is None else failure.exit_code
    existing, journalled = run.existing(), run.journalled()
    assert existing <= journalled, f"an orphan: {existing - journalled}"
    assert run.journalled(MADE) <= existing
    if code == EXIT_OK:
        assert (
            existing
            == journalled - run.journalled("unsure")
            == (set() if case.command == "delete" else run.journalled(MADE))
        )
    elif code == EXIT_LEFT_BEHIND:
        assert failure is not None
        zone, name = failure.where.split("/")
        assert (name, zone) in run.journalled(LEFT_BEHIND)
    else:
        assert code == EXIT_CLOUD
        assert existing == run.journalled(MADE) if case.command == "delete" else existing == set()
    if case.times == 1:
        assert code == EXIT_OK
    return code


def exit_codes(folder: Path, spec: VmSpec, command: str, call: str) -> Iterator[int]:
    """Yield the exit code of every case of a command and a call; run each distinct case once.

    A fault without a limit comes first. The run with a limit that it did not exceed is the same
    run, and so is every run with a fault of a call that the command does not send.
    """
    for fault in FAULTS:
        longest = run_with_fault(folder / fault, spec, FaultCase(command, call, fault, None))
        yield longest.exit_code
        for times in (ATTEMPTS, 1):
            run, case = longest, FaultCase(command, call, fault, times)
            if longest.requests > times:
                run = run_with_fault(folder / fault / str(times), spec, case)
            assert times > 1 or run.exit_code == EXIT_OK
            yield run.exit_code
        if longest.requests == 0:
            assert longest.exit_code == EXIT_OK
            yield from [EXIT_OK] * (len(FAULTS) - 1) * len(TIMES)
            return


def name_of(case: FaultCase) -> str:
    return f"{case.command}-{case.call}-{case.fault}-{case.times or 'ever'}"


@pytest.mark.parametrize("case", SOME, ids=name_of)
def test_faulty_call_leaves_no_unjournalled_vm(
    case: FaultCase, make_spec: MakeSpec, tmp_path: Path
) -> None:
    assert run_with_fault(tmp_path, make_spec(), case).exit_code in EXIT_CODES


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_faulty_call_leaves_no_unjournalled_vm(
    command: str, call: str, make_spec: MakeSpec, tmp_path: Path
) -> None:
    codes = Counter(exit_codes(tmp_path, make_spec(), command, call))
    assert codes.total() == len(FAULTS) * len(TIMES)
    assert set(codes) <= EXIT_CODES


def test_fault_matrix_covers_every_call_of_create_and_delete(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    """The matrix has every call that they send, without a fault and after a lost reply."""
    with emulated_run(tmp_path, make_spec()) as run:
        lost = Fault(
            kind=FaultKind.RESET_AFTER, call="instances.insert", zone=ZONES[1], times=ATTEMPTS
        )
        run.emulator.faults.add(stock_out(ZONES[0], leaves_vm=True), lost)
        assert run.run("create") is None
        assert run.run("delete") is None
        assert set(run.emulator.call_ids()) == set(CALLS)


def test_reliability_page_has_the_counted_figures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"(?m)^\| ([^|`]+?) +\| ([\d,]+) \|", text))
    killed_runs = 2 * sum(KILLED.values()) * len(FOLLOWING)
    assert rows == {
        "failed requests: command × call × fault × repetition": f"{len(MATRIX):,}",
        "runs killed, each recovered by the next command": f"{killed_runs:,}",
        "VMs without a journal entry": "0",
    }
