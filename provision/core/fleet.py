"""Many hosts: a bounded pool of workers, batches, a failure budget, and an interruption that leaves a truthful recap."""

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
_GOODBYE_S = 5.0


@dataclass(frozen=True)
class Pace:
    """How a run goes over its hosts.

    At most `forks` at once; in batches of `serial` where given; no further host is started once
    more than `max_fail` have failed (without `max_fail`, every host is tried, and with `serial` a
    batch that failed whole ends the run).
    """

    forks: int = DEFAULT_FORKS
    serial: int | None = None
    max_fail: int | None = None


@dataclass
class Cancel:
    """Told to every worker when the user interrupts: closes whatever connection is open."""

    _closers: dict[str, Callable[[], None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    requested: bool = False

    def register(self, host: str, close: Callable[[], None]) -> None:
        """`close` is called on interruption; at once when that has already happened."""
        with self._lock:
            self._closers[host] = close
            late = self.requested
        if late:
            close()

    def forget(self, host: str) -> None:
        """The host's connection is closed."""
        with self._lock:
            self._closers.pop(host, None)

    def now(self) -> None:
        """Close everything that is open; a connection that cannot be closed keeps no other open."""
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
    """Do `work` on every host and return all reports, in the order of `hosts`.

    `work` reports failures of its host in the report it returns; what it raises becomes one. On
    Ctrl-C every connection is closed, what was cut reads `unknown`, and the result says
    `interrupted`; a second Ctrl-C waits for nobody.
    """
    pace = pace or Pace()
    crew = _Crew(work, emit, pace)
    crew.emit(RunStarted(tuple(host.name for host in hosts), title, check))
    for batch in _batches(hosts, pace.serial):
        if crew.exhausted(batch_ended=True):
            break
        crew.batch(batch)
        if crew.cancel.requested:
            break
    reports = tuple(crew.reports[host.name] for host in hosts if host.name in crew.reports)
    not_started = tuple(host.name for host in hosts if host.name not in crew.reports)
    finished = RunFinished(reports, not_started, crew.cancel.requested)
    crew.end(finished)
    return finished


def _batches(hosts: Sequence[Host], size: int | None) -> list[Sequence[Host]]:
    if not size:
        return [hosts]
    return [hosts[start : start + size] for start in range(0, len(hosts), size)]


class _Crew:
    """The workers and what they brought back."""

    def __init__(self, work: Work, emit: Emit, pace: Pace) -> None:
        self._work = work
        self._emit = emit
        self._pace = pace
        self._lock = threading.RLock()
        self._last_batch: Sequence[Host] = ()
        self._started: list[str] = []
        self._over = False
        self.reports: dict[str, HostReport] = {}
        self.cancel = Cancel()

    def emit(self, event: Event) -> None:
        """Tell one event at a time; nothing after the end, when a worker that was given up may still talk."""
        with self._lock:
            if not self._over:
                self._emit(event)

    def end(self, finished: RunFinished) -> None:
        """Tell the last event."""
        with self._lock:
            self.emit(finished)
            self._over = True

    def exhausted(self, *, batch_ended: bool = False) -> bool:
        """True when the failure budget is spent."""
        failed = sum(report.failed for report in list(self.reports.values()))
        if self._pace.max_fail is not None:
            return failed > self._pace.max_fail
        return (
            batch_ended
            and bool(self._last_batch)
            and all(self.reports[host.name].failed for host in self._last_batch)
        )

    def batch(self, hosts: Sequence[Host]) -> None:
        """Do the work on these hosts; afterwards each has its report, unless it was not started."""
        self._last_batch = hosts
        workers = Workers(
            hosts,
            self._work_on,
            at_once=self._pace.forks,
            stop=lambda: self.cancel.requested or self.exhausted(),
        )
        try:
            workers.start()
            for _ in workers.results():
                pass
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                self._close_connections(workers)
            self._give_up()

    def _close_connections(self, workers: Workers[Host, None]) -> None:
        """Close every connection and give the workers a moment to report."""
        self.cancel.now()
        for _ in workers.results(_GOODBYE_S):
            pass

    def _give_up(self) -> None:
        """A report for every host whose worker does not come back."""
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
        self._report(self._one(host))

    def _one(self, host: Host) -> HostReport:
        try:
            report = self._work(host, self.emit, self.cancel)
        except ProvisionError as error:
            report = HostReport(host.name, error=error)
        except Exception as error:  # noqa: BLE001 - the other hosts go on, and the recap says why this one did not
            report = HostReport(host.name, error=_mistake(host.name, error))
        finally:
            self.cancel.forget(host.name)
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
