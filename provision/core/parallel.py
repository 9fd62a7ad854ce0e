"""Work on several items in threads. The one thread pool of the package."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
T = TypeVar("T")


@dataclass(frozen=True)
class Ended(Generic[Item, T]):
    """How the work on one item ended: its value, or the exception that it raised."""

    index: int
    item: Item
    value: T | None = None
    error: BaseException | None = None


class Workers(Generic[Item, T]):
    """Threads that call `work` on each of `items`, at most `at_once` at the same time.

    No further item is begun once `stop` returns True. The threads are daemons: a process that
    ends does not wait for them.
    """

    def __init__(
        self,
        items: Sequence[Item],
        work: Callable[[Item], T],
        *,
        at_once: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._work = work
        self._stop = stop
        self._at_once = min(at_once, len(items))
        self._running = 0
        self._todo: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Ended[Item, T] | None] = queue.SimpleQueue()
        for entry in enumerate(items):
            self._todo.put(entry)

    def start(self) -> None:
        """Start the threads. After a `KeyboardInterrupt` those that were started go on."""
        for _ in range(self._at_once):
            self._running += 1
            threading.Thread(target=self._run, daemon=True).start()

    def results(self, timeout_s: float | None = None) -> Iterator[Ended[Item, T]]:
        """Yield what ended, in the order of completion, until all threads have or time is over.

        Ctrl-C raises `KeyboardInterrupt` here and leaves the threads alone; a further call goes on
        with what ends after that.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._running:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                ended = self._ended.get(timeout=left_s)
            except queue.Empty:
                return
            if ended is None:
                self._running -= 1
            else:
                yield ended

    def _run(self) -> None:
        try:
            while not self._stop():
                index, item = self._todo.get_nowait()
                self._ended.put(self._end_of(index, item))
        except queue.Empty:
            return
        finally:
            self._ended.put(None)

    def _end_of(self, index: int, item: Item) -> Ended[Item, T]:
        try:
            return Ended(index, item, self._work(item))
        except BaseException as error:  # noqa: BLE001 - the caller of `results` raises it or reports it
            return Ended(index, item, error=error)


def run_all(
    items: Sequence[Item], work: Callable[[Item], T], *, at_once: int
) -> list[Ended[Item, T]]:
    """Call `work` on every item in threads and return how each ended, in the order of `items`."""
    workers = Workers(items, work, at_once=at_once)
    workers.start()
    return sorted(workers.results(), key=lambda ended: ended.index)
