"""How long `vm.list` of 500 VMs takes, from the command's call to its document and table.

Imports are done before, and the emulator runs in the same process.

    .venv/bin/python -m bench.listing --rounds 9 --output bench/results/listing.json

The emulator's own work is in it: it answers from a thread of this process, and packs 500 instances
into its reply.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from bench import measure
from provision.cloud.api.gce import GceCloud
from provision.commands.vm.list import vm_list
from provision.core.model import VmSpec
from provision.project.project import Project
from provision.settings import Settings
from provision.testing.compute import ComputeEmulator, NullBackend

WANTED_S = 1.0
COUNT = 500
ZONES = ("us-central1-a", "us-central1-b", "europe-west4-a")


def multiply(emulator: ComputeEmulator, count: int, zones: Sequence[str]) -> None:
    """Copy the existing VM `count` times over `zones`, each with its own name and id."""
    saved = emulator.snapshot()
    (one,) = saved["instances"]
    text = json.dumps(one)
    own_zone, name = one["place"][1], one["place"][2]
    copies = []
    for number in range(1, count):
        copy = json.loads(
            text.replace(own_zone, zones[number % len(zones)]).replace(
                f'"{name}"', f'"{name}-{number}"'
            )
        )
        copy["resource"]["id"] = str(int(one["resource"]["id"]) + number)
        copies.append(copy)
    emulator.restore({**saved, "items": [], "instances": copies})


def measured(folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds of each round, and the calls that one of them makes."""
    project = Project(
        Settings.model_validate({"project": "demo-project"}), folder / "state", folder
    )
    labels = {"provision-owner": project.ensure_owner()}
    with ComputeEmulator(NullBackend(port=22)) as emulator:
        cloud = GceCloud("demo-project", emulator.endpoint)
        spec = VmSpec(
            name="dev",
            machine_type="g2-standard-8",
            gpu="nvidia-l4",
            gpu_count=1,
            disk_gb=200,
            image="cos-125-lts",
            image_project="cos-cloud",
            ttl_s=8 * 3600,
            labels=labels,
            metadata={},
        )
        cloud.create(spec, ZONES[0], request_id="6f8c2d8e-5d7e-4a39-9d52-6b8b2f0d8a11")
        multiply(emulator, COUNT, ZONES)
        walls, whole = [], 0
        with mock.patch.object(Project, "connect_cloud", return_value=cloud):
            for number in range(-1, rounds):  # the first imports
                emulator.calls.clear()
                started = time.perf_counter()
                done = vm_list(project)
                json.dumps(done.document)
                walls += [time.perf_counter() - started] if number >= 0 else []
                whole = len(done.document["vms"])
        calls = emulator.counted()
        cloud.close()
    return {"vms": whole, "calls": calls, "wall_s": measure.summary(walls), "samples_wall_s": walls}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        document = {
            "what": f"vm.list of {COUNT} VMs: seconds from the use case's call to document and "
            "table, the emulator's answer included",
            **measure.surroundings(("provision-gpu", "google-cloud-compute")),
            "rounds": args.rounds,
            "wanted_s": WANTED_S,
            "load": measure.load(),
            "list": measured(Path(name), args.rounds),
        }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    results = document["list"]
    print(f"vm.list of {results['vms']} VMs: {results['wall_s']}, calls: {results['calls']}")


if __name__ == "__main__":
    main()
