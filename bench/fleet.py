"""Whole processes over N hosts, 50 ms away: `ssh host true` to all of them (the floor), our first run, our no-change run.

    .venv/bin/python -m bench.fleet --rounds 7 --hosts 1,10 --output bench/results/fleet.json

In every round each cell is measured once, in turn, so that whatever else the machine does falls on all alike; what is
compared are the ratios within a round. After each run the hosts are looked at from outside: a wrong answer does not count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import measure, tools
from bench.measure import Sample
from bench.targets import Targets
from bench.tools import Floor, Ours, Tool

ROUND_TRIP_S = 0.05
PACKAGES = ("provision-gpu", "fabric", "invoke", "paramiko", "cryptography", "pydantic")
WANTED = {"first": 2.0, "no-change": 1.3}
"""At most so many times the floor, with ten hosts."""
_QUIET_LIMIT_S = 30.0


@dataclass(frozen=True)
class Bench:
    """The tools over their targets."""

    folder: Path
    targets: Targets
    tools: tuple[Tool, ...]

    def round(self, number: int, count: int) -> Iterator[tuple[str, Sample]]:
        """Every cell once, beginning with another tool each time."""
        turn = number % len(self.tools)
        for tool in (*self.tools[turn:], *self.tools[:turn]):
            if not tool.converges:
                yield tool.name, self.measure(tool, "", count)
                continue
            for target in self.targets.all[:count]:
                target.refresh()
            tool.forget()
            for kind in ("first", "no-change"):
                yield f"{tool.name}, {kind}", self.measure(tool, kind, count)

    def measure(self, tool: Tool, kind: str, count: int) -> Sample:
        call = tool.call(count)
        before, cpu_s = self.targets.stats(count), self.targets.cpu_s(count)
        ended = measure.timed(call.commands, folder=tool.folder, env=call.env)
        after = self.targets.stats(count)
        self.targets.settle()
        problems = [f"exit {ended.statuses}: {ended.stderr[-2000:]}{ended.stdout[-2000:]}"] if any(ended.statuses) else []
        if tool.converges and not problems:
            problems += filter(None, (tool.problem(count, kind, ended.stdout), *map(tools.look, self.targets.all[:count])))
        detail: dict[str, Any] = {
            "hosts_cpu_s": round(self.targets.cpu_s(count) - cpu_s, 2),
            "connections": after.connections - before.connections,
            "turns_per_host": round((after.turns - before.turns) / count, 1),
            "bytes_per_host": round((after.bytes_up + after.bytes_down - before.bytes_up - before.bytes_down) / count),
        }
        if problems:
            detail["problems"] = problems
            print("\n".join(problems))
        return replace(ended.sample, ok=not problems, detail=detail)


def measured(bench: Bench, hosts: list[int], rounds: int) -> dict[str, Any]:
    """All rounds for each number of hosts, with one round before that does not count."""
    cells: dict[str, dict[str, list[Sample]]] = {}
    loads: dict[str, list[dict[str, float]]] = {}
    for count in hosts:
        found: dict[str, list[Sample]] = defaultdict(list)
        moments = []
        for number in range(-1, rounds):
            used = measure.wait_for_quiet(_QUIET_LIMIT_S)
            moment = {"load": measure.load(), "cores_in_use": used}
            for name, sample in bench.round(number, count):
                print(f"{count:3} hosts, round {number}: {name:24} {sample.wall_s:7.3f} s{'' if sample.ok else '   WRONG'}", flush=True)
                if number >= 0:
                    found[name].append(sample)
            if number >= 0:
                moments.append(moment)
        cells[str(count)] = dict(found)
        loads[str(count)] = moments
    return {
        "what": "wall time of whole processes in seconds; ratio = times `ssh host true` to the same hosts in the same round",
        **measure.surroundings(PACKAGES),
        "round_trip_s": ROUND_TRIP_S,
        "rounds": rounds,
        "wanted": WANTED,
        "results": {count: {name: _cell(samples, found[Floor.name]) for name, samples in found.items()} for count, found in cells.items()},
        "before_each_round": loads,
    }


def _cell(samples: list[Sample], floor: list[Sample]) -> dict[str, Any]:
    walls = [sample.wall_s for sample in samples]
    return {
        "wall_s": measure.summary(walls),
        "ratio": measure.summary(measure.ratios(walls, [sample.wall_s for sample in floor])),
        "ratios": measure.ratios(walls, [sample.wall_s for sample in floor]),
        "cpu_s": measure.summary([sample.cpu_s for sample in samples]),
        "hosts_cpu_s": measure.summary([sample.detail["hosts_cpu_s"] for sample in samples]),
        "wrong": sum(not sample.ok for sample in samples),
        "samples": [measure.document(sample) for sample in samples],
    }


def table(document: dict[str, Any]) -> str:
    """The results for people, in Markdown."""
    lines = [
        "| hosts | what | seconds | times the floor: median (min to max) | CPU s: here, hosts | round trips | wrong |",
        "|" + "---|" * 7,
    ]
    for count, cells in document["results"].items():
        for name, cell in cells.items():
            ratio, trips = cell["ratio"], cell["samples"][0]["detail"]["turns_per_host"] / 2
            lines.append(
                f"| {count} | {name} | {cell['wall_s']['median']:.2f} | {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}) "
                f"| {cell['cpu_s']['median']:.2f}, {cell['hosts_cpu_s']['median']:.2f} | {trips:.0f} | {cell['wrong']} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=lambda text: [int(word) for word in text.split(",")], default=[1, 10], help="1,10")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with Targets(folder, max(args.hosts), round_trip_s=ROUND_TRIP_S) as targets:
            kinds: tuple[type[Tool], ...] = (Floor, Ours)
            bench = Bench(folder, targets, tuple(kind(folder, targets.all) for kind in kinds))
            document = measured(bench, args.hosts, args.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(document))


if __name__ == "__main__":
    main()
