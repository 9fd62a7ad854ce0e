"""Runs over several hosts: forks, batches, the failure limit and Ctrl-C."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.core import fleet
from provision.core.errors import ProvisionError, Unreachable
from provision.core.fleet import Cancel, Pace, run
from provision.core.model import (
    Emit,
    Event,
    Host,
    HostFinished,
    HostReport,
    HostStarted,
    Outcome,
    RunFinished,
    RunStarted,
    Status,
)

ROOT = Path(__file__).parents[2]


def hosts(count: int) -> list[Host]:
    return [Host(name=f"h{number}", address="x.invalid") for number in range(count)]


def fine(host: Host, emit: Emit, cancel: Cancel) -> HostReport:
    emit(HostStarted(host.name))
    return HostReport(host.name, (Outcome("a", Status.OK),))


def failing(*names: str) -> fleet.Work:
    def work(host: Host, emit: Emit, cancel: Cancel) -> HostReport:
        if host.name in names:
            return HostReport(host.name, (Outcome("a", Status.FAILED),))
        return fine(host, emit, cancel)

    return work


def names(reports: Sequence[HostReport]) -> list[str]:
    return [report.host for report in reports]


def go(
    count: int,
    work: fleet.Work,
    *,
    forks: int = 4,
    serial: int | None = None,
    max_fail: int | None = None,
    log: list[Event] | None = None,
) -> RunFinished:
    events: list[Event] = [] if log is None else log
    return run(hosts(count), work, events.append, title="test", pace=Pace(forks, serial, max_fail))


# --- order and number -----------------------------------------------------------------------------


def test_reports_follow_the_order_of_the_hosts() -> None:
    """The first host ends last: it waits until the others have ended."""
    others = threading.Semaphore(0)
    log: list[Event] = []

    def emit(event: Event) -> None:
        log.append(event)
        if isinstance(event, HostFinished):
            others.release()

    def work(host: Host, emit: Emit, cancel: Cancel) -> HostReport:
        if host.name == "h0":
            for _ in range(5):
                assert others.acquire(timeout=30)
        return fine(host, emit, cancel)

    finished = run(hosts(6), work, emit, title="test", pace=Pace(4))
    assert names(finished.reports) == [f"h{number}" for number in range(6)]
    assert finished.not_started == ()
    assert not finished.interrupted
    assert isinstance(log[0], RunStarted)
    assert log[-1] == finished
    ended = [event.report.host for event in log if isinstance(event, HostFinished)]
    assert ended[-1] == "h0"
    assert sorted(ended) == sorted(names(finished.reports))


@pytest.mark.parametrize(("forks", "count"), [(1, 4), (3, 9), (8, 3)])
def test_no_more_hosts_than_forks_run_at_once(forks: int, count: int) -> None:
    together = min(forks, count)
    barrier = threading.Barrier(together)
    running = 0
    most = 0
    lock = threading.Lock()

    def work(host: Host, emit: Emit, cancel: Cancel) -> HostReport:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(timeout=30)  # breaks when fewer than `together` run side by side
        with lock:
            running -= 1
        return fine(host, emit, cancel)

    finished = go(count, work, forks=forks)
    assert [report.error for report in finished.reports] == [None] * count
    assert most == together


def test_events_are_emitted_one_at_a_time() -> None:
    inside = threading.Lock()
    seen: list[Event] = []

    def emit(event: Event) -> None:
        assert inside.acquire(blocking=False)
        seen.append(event)
        inside.release()

    def work(host: Host, emit: Emit, cancel: Cancel) -> HostReport:
        for _ in range(50):
            emit(HostStarted(host.name))
        return HostReport(host.name)

    run(hosts(8), work, emit, title="test")
    assert len(seen) == 1 + 8 * 51 + 1


def test_run_without_hosts_finishes() -> None:
    finished = go(0, fine)
    assert finished == RunFinished(())


# --- batches and budgets --------------------------------------------------------------------------


def test_batch_ends_before_the_next_one_starts() -> None:
    log: list[Event] = []
    go(5, fine, forks=8, serial=2, log=log)
    batches = [{"h0", "h1"}, {"h2", "h3"}, {"h4"}]
    reported = [
        event.host if isinstance(event, HostStarted) else event.report.host
        for event in log
        if isinstance(event, HostStarted | HostFinished)
    ]
    for batch in batches:
        assert set(reported[: 2 * len(batch)]) == batch
        del reported[: 2 * len(batch)]


def test_batch_in_which_every_host_failed_ends_the_run() -> None:
    finished = go(6, failing("h2", "h3"), serial=2)
    assert names(finished.reports) == ["h0", "h1", "h2", "h3"]
    assert finished.not_started == ("h4", "h5")


def test_batch_with_a_successful_host_does_not_end_the_run() -> None:
    assert go(6, failing("h2"), serial=2).not_started == ()


def test_every_host_is_tried_without_max_fail() -> None:
    finished = go(5, failing("h0", "h1", "h2", "h3", "h4"), forks=1)
    assert len(finished.reports) == 5


@pytest.mark.parametrize(("max_fail", "tried"), [(0, 2), (1, 4), (2, 6)])
def test_no_host_is_started_after_max_fail_is_exceeded(max_fail: int, tried: int) -> None:
    finished = go(6, failing("h1", "h3"), forks=1, max_fail=max_fail)
    assert len(finished.reports) == tried
    assert len(finished.not_started) == 6 - tried


def test_failed_batch_does_not_end_the_run_below_max_fail() -> None:
    assert go(4, failing("h0"), serial=1, max_fail=1).not_started == ()


@settings(max_examples=40)
@given(
    st.integers(0, 9),
    st.sets(st.integers(0, 8)),
    st.integers(1, 4),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(0, 3),
)
def test_each_host_is_reported_or_listed_as_not_started(
    count: int, bad: set[int], forks: int, serial: int | None, max_fail: int | None
) -> None:
    finished = go(
        count,
        failing(*(f"h{number}" for number in bad)),
        forks=forks,
        serial=serial,
        max_fail=max_fail,
    )
    assert sorted([*names(finished.reports), *finished.not_started]) == [
        host.name for host in hosts(count)
    ]
    failed = sum(report.failed for report in finished.reports)
    if max_fail is not None:
        assert failed <= max_fail + min(forks, serial or count, count)
        assert finished.not_started == () or failed > max_fail


# --- what work raises -----------------------------------------------------------------------------


def raising(error: Exception) -> fleet.Work:
    def work(host: Host, emit: Emit, cancel: Cancel) -> HostReport:
        if host.name == "h1":
            raise error
        return fine(host, emit, cancel)

    return work


def test_provision_error_becomes_the_report() -> None:
    error = Unreachable("no route", where="h1")
    finished = go(3, raising(error))
    assert finished.reports[1] == HostReport("h1", error=error)
    assert [report.failed for report in finished.reports] == [False, True, False]


@pytest.mark.parametrize("serial", [None, 1])
def test_exception_fails_only_its_host(serial: int | None) -> None:
    finished = go(3, raising(KeyError("oops")), forks=1, serial=serial, max_fail=2)
    assert names(finished.reports) == ["h0", "h1", "h2"]
    error = finished.reports[1].error
    assert isinstance(error, ProvisionError)
    assert error.where == "h1"
    assert "KeyError: 'oops'" in error.why
    assert "test_fleet.py" in error.why
    assert isinstance(error.__cause__, KeyError)


# --- cancelling -----------------------------------------------------------------------------------


def test_cancel_closes_open_and_later_connections() -> None:
    closed: list[str] = []
    cancel = Cancel()
    cancel.register("a", lambda: closed.append("a"))
    cancel.register("b", lambda: closed.append("b"))
    cancel.unregister("b")
    cancel.close_all()
    cancel.register("c", lambda: closed.append("c"))
    assert closed == ["a", "c"]
    assert cancel.requested


def test_connection_that_fails_to_close_does_not_keep_others_open() -> None:
    closed: list[str] = []
    cancel = Cancel()

    def broken() -> None:
        raise OSError("already gone")

    cancel.register("a", broken)
    cancel.register("b", lambda: closed.append("b"))
    cancel.close_all()
    assert closed == ["b"]


# --- Ctrl-C: in an interpreter of its own, since pytest has the main thread's signals -------------

PRELUDE = """
import json, signal, sys, threading
from provision.core import fleet
from provision.core.errors import Unreachable
from provision.core.model import *

fleet._CLOSE_TIMEOUT_S = 1.0
events = []
hosts = [Host(name=f"h{number}", address="x.invalid") for number in range(5)]
released = {host.name: threading.Event() for host in hosts}
both = threading.Barrier(2, action=lambda: press())
def press():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
def print_summary(finished):
    def summary(report):
        return [type(report.error).__name__, [str(each.status) for each in report.outcomes]]
    print(json.dumps({
        "reports": {report.host: summary(report) for report in finished.reports},
        "not_started": finished.not_started,
        "interrupted": finished.interrupted,
        "last": type(events[-1]).__name__,
        "ended": [event.report.host for event in events if isinstance(event, HostFinished)],
    }))
"""


def interrupted(
    work: str,
    run: str = "fleet.run(hosts, work, events.append, title='t', pace=fleet.Pace(forks=2))",
) -> dict[str, object]:
    code = PRELUDE + work + f"\nprint_summary({run})\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_ctrl_c_closes_connections_and_reports_interrupted_hosts() -> None:
    found = interrupted("""
def work(host, emit, cancel):
    cancel.register(host.name, released[host.name].set)
    if host.name == "h0":
        return HostReport(host.name, (Outcome("a", Status.CHANGED),))
    both.wait()
    released[host.name].wait()
    outcomes = (Outcome("a", Status.OK), Outcome("b", Status.UNKNOWN))
    return HostReport(host.name, outcomes, error=Unreachable("closed"))
""")
    cut = ["Interrupted", ["ok", "unknown"]]
    assert found["reports"] == {"h0": ["NoneType", ["changed"]], "h1": cut, "h2": cut}
    assert found["not_started"] == ["h3", "h4"]
    assert found["interrupted"] is True
    assert found["last"] == "RunFinished"


def test_host_with_hanging_worker_is_reported_as_interrupted() -> None:
    found = interrupted("""
def work(host, emit, cancel):
    both.wait()
    threading.Event().wait()
""")
    assert found["reports"] == {"h0": ["Interrupted", []], "h1": ["Interrupted", []]}
    assert found["not_started"] == ["h2", "h3", "h4"]
    assert found["ended"] == ["h0", "h1"]


def test_second_ctrl_c_stops_waiting_and_still_reports() -> None:
    found = interrupted("""
fleet._CLOSE_TIMEOUT_S = 50.0
def again():
    press()
def work(host, emit, cancel):
    cancel.register(host.name, again if host.name == "h1" else lambda: None)
    both.wait()
    threading.Event().wait()
""")
    assert set(found["reports"]) == {"h0", "h1"}  # type: ignore[call-overload]
    assert found["interrupted"] is True


def test_ctrl_c_during_worker_start_interrupts_the_run() -> None:
    found = interrupted("""
class Slow(threading.Thread):
    count = 0
    def start(self):
        Slow.count += 1
        if Slow.count == 2:
            raise KeyboardInterrupt
        super().start()
fleet.threading.Thread = Slow
def work(host, emit, cancel):
    return HostReport(host.name)
""")
    assert found["interrupted"] is True


def test_host_that_ended_in_time_is_not_reported_as_interrupted() -> None:
    found = interrupted("""
def work(host, emit, cancel):
    cancel.register(host.name, released[host.name].set)
    if host.name in ("h0", "h1"):
        both.wait()
        released[host.name].wait()
    return HostReport(host.name, (Outcome("a", Status.OK),))
""")
    assert found["reports"] == {"h0": ["NoneType", ["ok"]], "h1": ["NoneType", ["ok"]]}


def test_run_waits_for_workers_that_end_soon_after_ctrl_c() -> None:
    """Up to Python 3.12 a join that Ctrl-C interrupts marks its thread as ended."""
    found = interrupted(
        """
import time
def work(host, emit, cancel):
    cancel.register(host.name, released[host.name].set)
    time.sleep(0.1)  # until it is joined
    press()
    released[host.name].wait()
    time.sleep(0.2)
    return HostReport(host.name, (Outcome("a", Status.UNKNOWN),))
""",
        "fleet.run(hosts[:1], work, events.append, title='t')",
    )
    assert found["reports"] == {"h0": ["NoneType", ["unknown"]]}


def test_events_after_the_end_are_dropped() -> None:
    found = interrupted(
        """
late = threading.Event()
def work(host, emit, cancel):
    both.wait()
    late.wait()
    emit(Note("too late"))
    return HostReport(host.name, (Outcome("a", Status.OK),))
def run():
    finished = fleet.run(hosts, work, events.append, title="t", pace=fleet.Pace(forks=2))
    late.set()
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(20)
    return finished
""",
        "run()",
    )
    assert found["reports"] == {"h0": ["Interrupted", []], "h1": ["Interrupted", []]}
    assert found["ended"] == ["h0", "h1"]
    assert found["last"] == "RunFinished"
