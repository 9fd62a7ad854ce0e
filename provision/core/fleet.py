"""A run over several hosts: a bounded pool of workers, batches, a failure limit, Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from provision.core.errors import Interrupted, ProvisionError
from provision.core.model import (
    Emit,
    Event,
    Host,
    HostFinished,
    HostReport,
    RunFinished,
    RunStarted,
)
from provision.core.parallel import Workers

DEFAULT_FORKS = 32
_CLOSE_TIMEOUT_S = 5.0
"""Seconds in which the workers of an interrupted run may report."""


@dataclass(frozen=True)
class Pace:
    """How many hosts a run works on at once, and when it stops.

    At most `forks` hosts at once, in batches of `serial` where that is given. No further host is
    started once more than `max_fail` have failed. Without `max_fail` every host is tried, except
    that a batch in which every host failed ends the run.
    """

    forks: int = DEFAULT_FORKS
    serial: int | None = None
    max_fail: int | None = None


@dataclass
class Cancel:
    """The open connections of a run, which an interruption closes."""

    _closers: dict[str, Callable[[], None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    requested: bool = False

    def register(self, host: str, close: Callable[[], None]) -> None:
        """Call `close` on interruption; at once when that has already happened."""
        with self._lock:
            self._closers[host] = close
            late = self.requested
        if late:
            close()

    def unregister(self, host: str) -> None:
        """Remove a host whose connection is closed."""
        with self._lock:
            self._closers.pop(host, None)

    def close_all(self) -> None:
        """Close every open connection. One that cannot be closed does not keep others open."""
        with self._lock:
            self.requested = True
            closers = list(self._closers.values())
        for close in closers:
            with contextlib.suppress(Exception):
                close()


Work = Callable[[Host, Emit, Cancel], HostReport]


def run(
    hosts: Sequence[Host],
    work: Work,
    emit: Emit,
    *,
    title: str,
    pace: Pace | None = None,
    check: bool = False,
) -> RunFinished:
    """Call `work` for every host and return all reports, in the order of `hosts`.

    `work` returns the report of its host, failures included. An exception that it raises becomes a
    report. On Ctrl-C every connection is closed, the changes that were interrupted are `unknown`,
    and the result is `interrupted`. A second Ctrl-C ends the run without waiting for workers.
    """
    pace = pace or Pace()
    pool = _Pool(work, emit, pace)
    pool.emit(RunStarted(tuple(host.name for host in hosts), title, check))
    for batch in _batches(hosts, pace.serial):
        if pool.must_stop(batch_ended=True):
            break
        pool.run_batch(batch)
        if pool.cancel.requested:
            break
    reports = tuple(pool.reports[host.name] for host in hosts if host.name in pool.reports)
    not_started = tuple(host.name for host in hosts if host.name not in pool.reports)
    finished = RunFinished(reports, not_started, pool.cancel.requested)
    pool.end(finished)
    return finished


def _batches(hosts: Sequence[Host], size: int | None) -> list[Sequence[Host]]:
    if not size:
        return [hosts]
    return [hosts[start : start + size] for start in range(0, len(hosts), size)]


class _Pool:
    """The workers of a run and the reports that they made."""

    def __init__(self, work: Work, emit: Emit, pace: Pace) -> None:
        self._work = work
        self._emit = emit
        self._pace = pace
        self._lock = threading.RLock()
        self._last_batch: Sequence[Host] = ()
        self._started: list[str] = []
        self._ended = False
        self.reports: dict[str, HostReport] = {}
        self.cancel = Cancel()

    def emit(self, event: Event) -> None:
        """Report events one at a time. After the end, events of abandoned workers are dropped."""
        with self._lock:
            if not self._ended:
                self._emit(event)

    def end(self, finished: RunFinished) -> None:
        """Report the last event."""
        with self._lock:
            self.emit(finished)
            self._ended = True

    def must_stop(self, *, batch_ended: bool = False) -> bool:
        """True when too many hosts have failed to start another one."""
        failed = sum(report.failed for report in list(self.reports.values()))
        if self._pace.max_fail is not None:
            return failed > self._pace.max_fail
        return (
            batch_ended
            and bool(self._last_batch)
            and all(self.reports[host.name].failed for host in self._last_batch)
        )

    def run_batch(self, hosts: Sequence[Host]) -> None:
        """Do the work on these hosts. Each has its report afterwards, unless it was not started."""
        self._last_batch = hosts
        workers = Workers(
            hosts,
            self._work_on,
            at_once=self._pace.forks,
            stop=lambda: self.cancel.requested or self.must_stop(),
        )
        try:
            workers.start()
            for _ in workers.results():
                pass
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                self._close_connections(workers)
            self._abandon_workers()

    def _close_connections(self, workers: Workers[Host, None]) -> None:
        """Close every connection and wait for the reports of the workers."""
        self.cancel.close_all()
        for _ in workers.results(_CLOSE_TIMEOUT_S):
            pass

    def _abandon_workers(self) -> None:
        """Report every host whose worker has not returned as interrupted."""
        with self._lock:
            for name in self._started:
                if name not in self.reports:
                    self._report(HostReport(name, error=_interrupted(name)))

    def _report(self, report: HostReport) -> None:
        with self._lock:
            if report.host not in self.reports:
                self.reports[report.host] = report
                self.emit(HostFinished(report))

    def _work_on(self, host: Host) -> None:
        self._started.append(host.name)
        self._report(self._report_of(host))

    def _report_of(self, host: Host) -> HostReport:
        try:
            report = self._work(host, self.emit, self.cancel)
        except ProvisionError as error:
            report = HostReport(host.name, error=error)
        except Exception as error:  # noqa: BLE001 - the other hosts go on
            report = HostReport(host.name, error=_mistake(host.name, error))
        finally:
            self.cancel.unregister(host.name)
        if self.cancel.requested and report.error is not None:
            return replace(report, error=_interrupted(host.name))
        return report


def _interrupted(host: str) -> Interrupted:
    return Interrupted(
        "interrupted",
        where=host,
        why="Ctrl-C",
        fix="run the same command again: it continues where it stopped",
    )


def _mistake(host: str, error: Exception) -> ProvisionError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    why = f"{type(error).__name__}: {error}\n{last.filename}:{last.lineno} in {last.name}"
    mistake = ProvisionError(
        "a mistake in provision or in a recipe",
        where=host,
        why=why,
        fix="run it again with --debug",
    )
    mistake.__cause__ = error
    return mistake
