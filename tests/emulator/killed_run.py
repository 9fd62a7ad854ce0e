"""A process that is killed at its k-th step, as by `kill -9` or a power cut.

A step is one HTTP request or one line of the journal. The fork server imports this module, so that
a run costs a fork.
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

for _name in (
    "AcceleratorTypes",
    "Disks",
    "Images",
    "Instances",
    "Projects",
    "Regions",
    "ZoneOperations",
):
    getattr(compute(), f"{_name}Client")  # a fork finds it imported

KILLED_STATUS = 137
"""Exit status of a run that reached its step."""
OWNER = "me-0123456789ab"
SPEC = vm_spec(**T4, image="cos-125-19216-655-28", labels={"provision-owner": OWNER})
ZONES = ("us-central1-a", "us-central1-b", "us-east1-c")


@dataclass(frozen=True)
class KillPoint:
    """The process is killed at step number `step` (from 1), before its effect or after it."""

    step: int
    after: bool


def new_context(endpoint: str, journal: Path) -> CloudContext:
    """Return the context of a run, without a listener."""
    return CloudContext(
        cloud=GceCloud("demo", endpoint),
        journal=Journal(journal, "demo"),
        emit=lambda event: None,
        sleep=lambda _s: None,
    )


def collect(run: CloudContext) -> None:
    """Do what `vm.gc` does after the confirmation."""
    found = orphans.fetch_orphans(run, lambda owner: owner == OWNER, run.journal.open())
    for orphan in found.orphans:
        assert remove_orphan(run, orphan)
    for entry in found.finished_entries:
        run.journal.mark(entry.request_id, GONE)


VERBS: dict[str, Callable[[CloudContext], object]] = {
    "create": lambda context: create_vm(context, SPEC, ZONES),
    "create in a race": lambda context: create_vm(context, SPEC, ZONES, width=2),
    "delete": lambda context: delete_vms_by_name(context, "dev", OWNER),
    "gc": collect,
}


def run(verb: str, endpoint: str, journal: Path, kill_at: KillPoint) -> None:
    """Run in the process: exits with KILLED_STATUS at its step, with 0 when it has fewer steps."""
    count = itertools.count(1)
    lock = threading.Lock()

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **words: Any) -> Any:
            with lock:
                is_last = next(count) == kill_at.step
            if is_last and not kill_at.after:
                os._exit(KILLED_STATUS)
            result = act(*args, **words)
            if is_last:
                os._exit(KILLED_STATUS)
            return result

        return wrapped

    requests.Session.send = counted(requests.Session.send)  # type: ignore[method-assign]
    Journal._append = counted(Journal._append)  # type: ignore[method-assign]
    VERBS[verb](new_context(endpoint, journal))
    os._exit(0)


def start(verb: str, endpoint: str, journal: Path, kill_at: KillPoint) -> int:
    """Run the command in a process of its own; return its exit status."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.emulator.killed_run"])
    process = context.Process(target=run, args=(verb, endpoint, journal, kill_at))
    process.start()
    process.join(60)
    status = process.exitcode
    process.close()
    assert status is not None
    return status
