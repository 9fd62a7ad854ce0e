"""A run that dies at its k-th step: a process of its own, ended without a word, as by `kill -9` or a lost battery.

A step is one HTTP request or one line of the journal. It is imported by the fork server, so that a
run costs a fork.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from provision.cloud.api.gce import GceCloud
from provision.cloud.api.google_library import compute
from provision.cloud.lifecycle import orphans
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import create_vm
from provision.cloud.lifecycle.delete import delete_vms_by_name
from provision.cloud.lifecycle.journal import GONE, Journal
from provision.cloud.lifecycle.orphan_removal import remove_orphan
from tests.specs import T4, vm_spec

for _name in ("Instances", "Images", "AcceleratorTypes", "ZoneOperations", "Disks"):
    getattr(compute(), f"{_name}Client")  # what a fork should find imported

DIED = 137
"""Exit status of a run that reached its step."""
OWNER = "me-0123456789ab"
SPEC = vm_spec(**T4, image="cos-125-19216-655-28", labels={"provision-owner": OWNER})
ZONES = ("us-central1-a", "us-central1-b", "us-east1-c")


@dataclass(frozen=True)
class Doom:
    """Death at step number `step` (from 1), before it takes effect or right after it did."""

    step: int
    after: bool


def context(endpoint: str, journal: Path) -> CloudContext:
    """What a run works with; nobody listens."""
    return CloudContext(
        cloud=GceCloud("demo", endpoint),
        journal=Journal(journal, "demo"),
        emit=lambda event: None,
        sleep=lambda _s: None,
    )


def collect(run: CloudContext) -> None:
    """What vm.gc does once it was told to."""
    found = orphans.find_orphans(run, lambda owner: owner == OWNER, run.journal.open())
    for stray in found.orphans:
        assert remove_orphan(run, stray)
    for entry in found.finished_entries:
        run.journal.mark(entry.request_id, GONE)


VERBS: dict[str, Callable[[CloudContext], object]] = {
    "create": lambda context: create_vm(context, SPEC, ZONES),
    "create in a race": lambda context: create_vm(context, SPEC, ZONES, width=2),
    "delete": lambda context: delete_vms_by_name(context, "dev", OWNER),
    "gc": collect,
}


def run(verb: str, endpoint: str, journal: Path, doom: Doom) -> None:
    """The process: ends with DIED at its step, with 0 when it has fewer steps."""
    count = itertools.count(1)
    lock = threading.Lock()

    def doomed(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **words: Any) -> Any:
            with lock:
                mine = next(count) == doom.step
            if mine and not doom.after:
                os._exit(DIED)
            result = act(*args, **words)
            if mine:
                os._exit(DIED)
            return result

        return wrapped

    requests.Session.send = doomed(requests.Session.send)  # type: ignore[method-assign]
    Journal._append = doomed(Journal._append)  # type: ignore[method-assign]
    VERBS[verb](context(endpoint, journal))
    os._exit(0)


def start(verb: str, endpoint: str, journal: Path, doom: Doom) -> int:
    """Run it in a process of its own; its exit status."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.emulator.killed_run"])
    process = context.Process(target=run, args=(verb, endpoint, journal, doom))
    process.start()
    process.join(60)
    status = process.exitcode
    process.close()
    assert status is not None
    return status
