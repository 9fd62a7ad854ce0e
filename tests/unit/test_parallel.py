"""The thread pool: bounded, stoppable, interruptible."""

from __future__ import annotations

import threading

import pytest

from provision.core.parallel import Workers, run_all


def test_results_come_in_the_order_of_the_items() -> None:
    second = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second.wait(10)
        else:
            second.set()
        return item * 10

    assert [ended.value for ended in run_all([0, 1, 2], work, at_once=2)] == [0, 10, 20]


def test_no_items_need_no_thread() -> None:
    assert run_all([], str, at_once=4) == []


def test_exception_of_one_item_ends_no_other() -> None:
    def work(item: int) -> int:
        if item == 1:
            raise ValueError("no")
        return item

    ended = run_all([0, 1, 2], work, at_once=1)
    assert [(each.value, type(each.error)) for each in ended] == [
        (0, type(None)),
        (None, ValueError),
        (2, type(None)),
    ]


def test_no_more_than_the_limit_run_at_once() -> None:
    running, most, lock = [0], [0], threading.Lock()
    pair = threading.Barrier(2)

    def work(_item: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        pair.wait(10)
        with lock:
            running[0] -= 1

    run_all(range(6), work, at_once=2)
    assert most == [2]


def test_no_item_is_begun_after_stop() -> None:
    begun: list[int] = []
    workers = Workers(range(5), begun.append, at_once=1, stop=lambda: len(begun) == 2)
    workers.start()
    assert [ended.index for ended in workers.results()] == [0, 1]


def test_results_can_be_taken_up_again_after_a_time_limit() -> None:
    release = threading.Event()
    workers = Workers([0], lambda _item: release.wait(10), at_once=1)
    workers.start()
    assert list(workers.results(0.01)) == []
    release.set()
    assert [ended.value for ended in workers.results()] == [True]


def test_interrupt_reaches_the_caller_and_leaves_the_threads_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()
    workers = Workers([0], lambda _item: release.wait(10), at_once=1)
    workers.start()

    class Interrupting:
        def get(self, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workers, "_ended", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            next(workers.results())
    release.set()
    assert [ended.value for ended in workers.results()] == [True]
