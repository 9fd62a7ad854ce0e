"""How long `vm.create` takes beside the API's own time: to SSH, and per zone without capacity.

    .venv/bin/python -m bench.create --rounds 9 --output bench/results/create.json

The API is the emulator's, with operations of 0 seconds; the VM is a mock host. Imports are over
before the first round. The API's own time is that between a request and its answer, seen from the
client.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import requests

from bench import measure
from provision.cloud.api.gce import GceCloud
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import create_vm
from provision.cloud.lifecycle.delete import delete_vms_by_name
from provision.cloud.lifecycle.journal import Journal
from provision.commands.mock.down import mock_down
from provision.commands.vm.shared.vm_spec import vm_spec
from provision.commands.vm.shared.wait_for_ssh import WaitLimits, wait_for_ssh
from provision.core.model import Event, VmSpec
from provision.project.login import fetch_os_login_enabled
from provision.project.project import Project
from provision.settings import Settings
from provision.testing.compute import ComputeEmulator, NullBackend, stock_out

PACKAGES = ("provision-gpu", "google-cloud-compute", "requests", "paramiko")
WANTED = {"ssh_ready_own_s": 1.0, "zone_own_s": 0.5}
EMPTY = ("us-central1-a", "us-central1-b", "us-central1-c")
GOOD = "us-west1-a"


def quiet(event: Event) -> None:
    del event


@dataclass
class Clocked:
    """Seconds in all, and those between requests and their answers."""

    wall_s: float = 0.0
    api_s: float = 0.0
    calls: int = 0

    @property
    def own_s(self) -> float:
        return self.wall_s - self.api_s

    def row(self) -> dict[str, Any]:
        return {
            "wall_s": round(self.wall_s, 4),
            "api_s": round(self.api_s, 4),
            "own_s": round(self.own_s, 4),
            "calls": self.calls,
        }


@contextmanager
def clocked() -> Iterator[Clocked]:
    """The block's time; requests of this thread are the API's."""
    found, send = Clocked(), requests.Session.send

    def timed(*args: Any, **words: Any) -> Any:
        started = time.perf_counter()
        try:
            return send(*args, **words)
        finally:
            found.api_s += time.perf_counter() - started
            found.calls += 1

    requests.Session.send = timed  # type: ignore[method-assign]
    started = time.perf_counter()
    try:
        yield found
    finally:
        found.wall_s = time.perf_counter() - started
        requests.Session.send = send  # type: ignore[method-assign]


def ssh_ready(folder: Path, rounds: int) -> list[Clocked]:
    """Measure `vm.create` until the VM answers on SSH, on the mock; the first round is left out."""
    project = Project(
        Settings.from_levels([]), folder / "state", folder, emit=quiet, environ=dict(os.environ)
    )
    cloud = project.connect_cloud()
    context = CloudContext(cloud=cloud, journal=project.journal, emit=quiet)
    limits = WaitLimits.of(project)
    found = []
    try:
        for _ in range(rounds + 1):
            with clocked() as clock:
                spec = vm_spec(project, "dev", os_login=fetch_os_login_enabled(project, cloud))
                made = create_vm(context, spec, [GOOD])
                wait_for_ssh(project, cloud, made.vm, limits)
            found.append(clock)
            delete_vms_by_name(context, "dev", spec.labels["provision-owner"])
    finally:
        mock_down(project)
    return found[1:]


def failover(folder: Path, spec: VmSpec, zones: tuple[str, ...], rounds: int) -> list[Clocked]:
    """Measure a VM made in the last of `zones`, the others without capacity, less a first round."""
    found = []
    with ComputeEmulator(NullBackend()) as emulator:
        emulator.faults.add(stock_out("us-central1-*"))
        cloud = GceCloud("demo", emulator.endpoint)
        context = CloudContext(
            cloud=cloud, journal=Journal(folder / f"{len(zones)}.jsonl", "demo"), emit=quiet
        )
        for _ in range(rounds + 1):
            with clocked() as clock:
                create_vm(context, spec, zones)
            found.append(clock)
            delete_vms_by_name(context, spec.name, spec.labels["provision-owner"])
        cloud.close()
    return found[1:]


def summary(samples: list[Clocked], value: Callable[[Clocked], float]) -> dict[str, float]:
    return measure.summary([value(sample) for sample in samples])


def document(folder: Path, rounds: int) -> dict[str, Any]:
    ready = ssh_ready(folder, rounds)
    project = Project(Settings.from_levels([]), folder / "state", folder, emit=quiet)
    spec = vm_spec(project, "dev", os_login=False)
    alone, after = (
        failover(folder, spec, (GOOD,), rounds),
        failover(folder, spec, (*EMPTY, GOOD), rounds),
    )
    each = [
        (late.own_s - first.own_s) / len(EMPTY) for late, first in zip(after, alone, strict=True)
    ]
    return {
        "ssh_ready": {
            name: summary(ready, attrgetter(name)) for name in ("wall_s", "api_s", "own_s", "calls")
        },
        "zone_own_s": measure.summary(each),
        "samples": {
            "ssh_ready": [clock.row() for clock in ready],
            "first_zone": [c.row() for c in alone],
            "fourth_zone": [c.row() for c in after],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name) / "project"
        folder.mkdir()
        found = {
            "what": "seconds of our own, the API's time taken off: "
            "create to SSH ready, and each zone without capacity",
            **measure.surroundings(PACKAGES),
            "rounds": args.rounds,
            "wanted": WANTED,
            "load": measure.load(),
            **document(folder, args.rounds),
        }
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("create to SSH ready, own seconds:", found["ssh_ready"]["own_s"])
    print("each zone without capacity, own seconds:", found["zone_own_s"])


if __name__ == "__main__":
    main()
