"""The same done to several things at once: each comes to an end of its own, and none stops another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from provision.core.errors import Interrupted, ProvisionError

AT_ONCE = 32
T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Act(Generic[Item, T]):
    """What came of one thing (a VM, or a name): its value, or the error."""

    item: Item
    value: T | None = None
    error: ProvisionError | None = None


def each(items: Sequence[Item], work: Callable[[Item], T]) -> list[Act[Item, T]]:
    """`ends`, of which a single one raises its error."""
    acts = ends(items, work)
    if len(acts) == 1 and acts[0].error is not None:
        raise acts[0].error
    return acts


def ends(items: Sequence[Item], work: Callable[[Item], T]) -> list[Act[Item, T]]:
    """`work` on every item, at most AT_ONCE at once; the ends in the order of `items`.

    A single one is worked on in this very thread. Ctrl-C ends the wait at once: what the cloud was
    asked for goes on there.
    """
    if len(items) == 1:
        return [_act(items[0], work)]
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[int, Act[Item, T] | BaseException]] = queue.SimpleQueue()
    for index in range(len(items)):
        todo.put(index)

    def worker() -> None:
        while True:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((index, _act(items[index], work)))
            except BaseException as error:  # noqa: BLE001 - handed to who waits
                ended.put((index, error))

    for _ in range(min(AT_ONCE, len(items))):
        threading.Thread(target=worker, daemon=True).start()
    return _gathered(len(items), ended)


def _act(item: Item, work: Callable[[Item], T]) -> Act[Item, T]:
    try:
        return Act(item, work(item))
    except Interrupted:
        raise
    except ProvisionError as error:
        return Act(item, error=error)


def _gathered(
    count: int, ended: queue.SimpleQueue[tuple[int, Act[Item, T] | BaseException]]
) -> list[Act[Item, T]]:
    found: dict[int, Act[Item, T]] = {}
    try:
        while len(found) < count:
            index, act = ended.get()
            if isinstance(act, BaseException):
                raise act
            found[index] = act
    except KeyboardInterrupt:
        why = f"{len(found)} of {count} were done; what the cloud was asked for goes on there"
        raise Interrupted("interrupted", why=why, fix="run the same command again") from None
    return [found[index] for index in range(count)]
