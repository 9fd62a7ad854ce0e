"""The same work on several VMs (or names) at once: each has its own result or error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from provision.core.errors import Interrupted, ProvisionError
from provision.core.parallel import Ended, Workers

AT_ONCE = 32
T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Result(Generic[Item, T]):
    """The result of the work on one item: its value, or the error."""

    item: Item
    value: T | None = None
    error: ProvisionError | None = None


def run_each(items: Sequence[Item], work: Callable[[Item], T]) -> list[Result[Item, T]]:
    """Do what `collect_results` does, but raise the error of a single item."""
    results = collect_results(items, work)
    if len(results) == 1 and results[0].error is not None:
        raise results[0].error
    return results


def collect_results(items: Sequence[Item], work: Callable[[Item], T]) -> list[Result[Item, T]]:
    """Call `work` on every item, at most AT_ONCE at once; return the results in order.

    A single item is worked on in the calling thread. An exception other than a `ProvisionError` is
    raised at once. Raises `Interrupted` on Ctrl-C without waiting: what the cloud was asked for
    goes on there.
    """
    if len(items) == 1:
        return [_result(items[0], work)]
    workers = Workers(items, lambda item: _result(item, work), at_once=AT_ONCE)
    done: list[Ended[Item, Result[Item, T]]] = []
    try:
        workers.start()
        for ended in workers.results():
            if ended.error is not None:
                raise ended.error
            done.append(ended)
    except KeyboardInterrupt:
        why = f"{len(done)} of {len(items)} were done; what the cloud was asked for goes on there"
        raise Interrupted("interrupted", why=why, fix="run the same command again") from None
    in_order = sorted(done, key=lambda ended: ended.index)
    return [ended.value for ended in in_order if ended.value is not None]


def _result(item: Item, work: Callable[[Item], T]) -> Result[Item, T]:
    try:
        return Result(item, work(item))
    except Interrupted:
        raise
    except ProvisionError as error:
        return Result(item, error=error)
