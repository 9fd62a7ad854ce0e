"""First run and no-change run on N hosts 50 ms away, compared with `ssh HOST true` (the floor).

    .venv/bin/python -m bench.fleet --rounds 7 --hosts 1,10 --output bench/results/fleet.json

In every round each cell is measured once, in turn, so that other load on the machine affects all
alike. The ratios within a round are compared. After each run the state of the hosts is checked from
outside; a run with a wrong result is marked as wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import measure, peer_tools, tools
from bench.measure import Sample
from bench.targets import Targets
from bench.tools import Floor, Ours, Tool

ROUND_TRIP_S = 0.05
PACKAGES = ("provision-gpu", "fabric", "invoke", "paramiko", "cryptography", "pydantic")
LIMITS = {"first": 2.0, "no-change": 1.3}
"""The highest accepted ratio to the floor, with ten hosts."""
QUIET_SHARE = 0.1
"""A round is quiet if other processes use at most this share of the machine."""
MIN_QUIET_ROUNDS = 5
"""With fewer quiet rounds all rounds count."""

_WHAT = (
    "wall time of whole processes in seconds; ratio = times `ssh host true` "
    "to the same hosts in the same round"
)


@dataclass(frozen=True)
class Bench:
    """The tools and their targets."""

    folder: Path
    targets: Targets
    tools: tuple[Tool, ...]

    def round(self, number: int, count: int) -> Iterator[tuple[str, Sample]]:
        """Measure every cell once, each time in another order of tools."""
        turn = number % len(self.tools)
        for tool in (*self.tools[turn:], *self.tools[:turn]):
            if not tool.converges:
                yield tool.name, self.measure(tool, "", count)
                continue
            for target in self.targets.all[:count]:
                target.reset()
            tool.reset()
            for kind in ("first", "no-change"):
                yield f"{tool.name}, {kind}", self.measure(tool, kind, count)
            tool.reset()
            self.targets.wait_for_sessions_to_end()

    def measure(self, tool: Tool, kind: str, count: int) -> Sample:
        """Measure one run of a tool (`kind`: first or no-change) on the first `count` hosts."""
        call = tool.call(count)
        before, cpu_s = self.targets.stats(count), self.targets.cpu_s(count)
        ended = measure.timed(call.commands, folder=tool.folder, env=call.env)
        after = self.targets.stats(count)
        if not tool.keeps_connections:
            self.targets.wait_for_sessions_to_end()
        problems = (
            [f"exit {ended.statuses}: {ended.stderr[-2000:]}{ended.stdout[-2000:]}"]
            if any(ended.statuses)
            else []
        )
        if tool.converges and not problems:
            problems += filter(
                None,
                (
                    tool.problem(count, kind, ended.stdout),
                    *map(tools.find_problem, self.targets.all[:count]),
                ),
            )
        hosts_cpu_s = (
            None if tool.keeps_connections else round(self.targets.cpu_s(count) - cpu_s, 2)
        )
        detail: dict[str, Any] = {
            "hosts_cpu_s": hosts_cpu_s,
            "others_cpu_s": None
            if hosts_cpu_s is None
            else round(max(0.0, ended.sample.strangers_cpu_s - hosts_cpu_s), 2),
            "connections": after.connections - before.connections,
            "turns_per_host": round((after.turns - before.turns) / count, 1),
            "bytes_per_host": round(
                (after.bytes_up + after.bytes_down - before.bytes_up - before.bytes_down) / count
            ),
        }
        if problems:
            detail["problems"] = problems
            print("\n".join(problems))
        return replace(ended.sample, ok=not problems, detail=detail)


@dataclass(frozen=True)
class Round:
    """The samples of one round by cell, and the load of the machine."""

    samples: dict[str, Sample]
    load: float

    @property
    def disturbance(self) -> float:
        """The largest share of the machine's time that other processes used during a cell."""
        used = [
            (sample.detail["others_cpu_s"], sample.wall_s * (os.cpu_count() or 1))
            for sample in self.samples.values()
        ]
        shares: list[float] = [
            others_s / whole_s for others_s, whole_s in used if others_s is not None
        ]
        return round(max(shares), 3)

    @property
    def quiet(self) -> bool:
        """True if other processes used at most `QUIET_SHARE` of the machine."""
        return self.disturbance <= QUIET_SHARE


def measure_rounds(bench: Bench, count: int, wanted: int, patience_s: float) -> list[Round]:
    """Measure until `wanted` rounds were quiet, at most 3 * `wanted` rounds after a warm-up."""
    found: list[Round] = []
    for number in range(-1, 3 * wanted):
        measure.wait_for_quiet(patience_s)
        load = measure.load()
        samples = {}
        for name, sample in bench.round(number, count):
            samples[name] = sample
            print(
                f"{count:3} hosts, round {number}: {name:28} {sample.wall_s:7.3f} s"
                f"{'' if sample.ok else '   WRONG'}",
                flush=True,
            )
        if number >= 0:
            found.append(Round(samples, load))
            print(f"    others used {found[-1].disturbance:.0%} of the machine", flush=True)
        if sum(measured.quiet for measured in found) == wanted:
            break
    return found


def run_benchmark(bench: Bench, hosts: list[int], wanted: int, patience_s: float) -> dict[str, Any]:
    """The JSON document; disturbed rounds are listed apart if enough quiet ones are left."""
    results = {}
    for count in hosts:
        rounds = measure_rounds(bench, count, wanted, patience_s)
        quiet = [measured for measured in rounds if measured.quiet]
        chosen = quiet if len(quiet) >= min(wanted, MIN_QUIET_ROUNDS) else rounds
        results[str(count)] = {
            "rounds": len(chosen),
            "left_out": [_disturbed(left) for left in rounds if left not in chosen],
            "load": [measured.load for measured in chosen],
            "disturbance": [measured.disturbance for measured in chosen],
            "cells": {
                name: cell(
                    [measured.samples[name] for measured in chosen],
                    [measured.samples[Floor.name] for measured in chosen],
                )
                for name in rounds[0].samples
            },
        }
    return {
        "what": _WHAT,
        **measure.surroundings(PACKAGES),
        "round_trip_s": ROUND_TRIP_S,
        "wanted": LIMITS,
        "results": results,
    }


def _disturbed(left: Round) -> dict[str, Any]:
    walls = {name: sample.wall_s for name, sample in left.samples.items()}
    return {"disturbance": left.disturbance, "load": left.load, "wall_s": walls}


def cell(samples: list[Sample], floor: list[Sample]) -> dict[str, Any]:
    """All samples of one cell with their statistics; `floor` has the samples of the same rounds."""
    walls = [sample.wall_s for sample in samples]
    hosts_cpu_s = [sample.detail["hosts_cpu_s"] for sample in samples]
    return {
        "wall_s": measure.summary(walls),
        "ratio": measure.summary(measure.ratios(walls, [sample.wall_s for sample in floor])),
        "ratios": measure.ratios(walls, [sample.wall_s for sample in floor]),
        "cpu_s": measure.summary([sample.cpu_s for sample in samples]),
        "hosts_cpu_s": None if None in hosts_cpu_s else measure.summary(hosts_cpu_s),
        "wrong": sum(not sample.ok for sample in samples),
        "samples": [measure.document(sample) for sample in samples],
    }


def table(document: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    lines = [
        (
            "| hosts | what | seconds | times the floor: median (min to max) "
            "| CPU s: here, hosts | round trips | wrong |"
        ),
        "|" + "---|" * 7,
    ]
    for count, result in document["results"].items():
        for name, cell in result["cells"].items():
            ratio, trips = cell["ratio"], cell["samples"][0]["detail"]["turns_per_host"] / 2
            hosts_cpu = f"{cell['hosts_cpu_s']['median']:.2f}" if cell["hosts_cpu_s"] else "?"
            spread = f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
            lines.append(
                f"| {count} | {name} | {cell['wall_s']['median']:.2f} | {spread} "
                f"| {cell['cpu_s']['median']:.2f}, {hosts_cpu} | {trips:.0f} | {cell['wrong']} |"
            )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--hosts",
        type=lambda text: [int(word) for word in text.split(",")],
        default=[1, 10],
        help="1,10",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        help="seconds to wait for a quiet machine before a round",
    )
    parser.add_argument(
        "--peers",
        type=lambda text: text.split(","),
        default=[],
        help="pyinfra,ansible,ansible+mitogen, or all",
    )
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    return parser


def main() -> None:
    args = _parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with Targets(folder, max(args.hosts), round_trip_s=ROUND_TRIP_S) as targets:
            peers = [
                kind for kind in peer_tools.ALL if kind.name in args.peers or "all" in args.peers
            ]
            found, left_out = peer_tools.available(folder, targets.all, peers)
            bench = Bench(
                folder, targets, (Floor(folder, targets.all), Ours(folder, targets.all), *found)
            )
            document = {
                **run_benchmark(bench, args.hosts, args.rounds, args.patience),
                "left_out": left_out,
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(document))


if __name__ == "__main__":
    main()
