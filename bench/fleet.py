"""Whole processes over N hosts, 50 ms away: `ssh host true` to all of them (the floor), our first run, our no-change run.

    .venv/bin/python -m bench.fleet --rounds 7 --hosts 1,10 --output bench/results/fleet.json

In every round each cell is measured once, in turn, so that whatever else the machine does falls on
all alike; what is compared are the ratios within a round. After each run the hosts are looked at
from outside: a wrong answer does not count.
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

from bench import measure, others, tools
from bench.measure import Sample
from bench.targets import Targets
from bench.tools import Floor, Ours, Tool

ROUND_TRIP_S = 0.05
PACKAGES = ("provision-gpu", "fabric", "invoke", "paramiko", "cryptography", "pydantic")
WANTED = {"first": 2.0, "no-change": 1.3}
"""At most so many times the floor, with ten hosts."""
QUIET_SHARE = 0.1
"""A round counts while processes that are no part of it use at most this share of the machine."""
LEAST_ROUNDS = 5
"""With fewer quiet rounds than this, all rounds count."""


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
            tool.forget()
            self.targets.settle()

    def measure(self, tool: Tool, kind: str, count: int) -> Sample:
        call = tool.call(count)
        before, cpu_s = self.targets.stats(count), self.targets.cpu_s(count)
        ended = measure.timed(call.commands, folder=tool.folder, env=call.env)
        after = self.targets.stats(count)
        if not tool.keeps_connections:
            self.targets.settle()
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
                    *map(tools.look, self.targets.all[:count]),
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
    """Every cell once, and what the machine was like."""

    samples: dict[str, Sample]
    load: float

    @property
    def disturbance(self) -> float:
        """The largest share of the machine's time that went to processes that are no part of the benchmark."""
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
        return self.disturbance <= QUIET_SHARE


def rounds_of(bench: Bench, count: int, wanted: int, patience_s: float) -> list[Round]:
    """Rounds until so many were quiet, at most three times as many; one before them does not count."""
    found: list[Round] = []
    for number in range(-1, 3 * wanted):
        measure.wait_for_quiet(patience_s)
        load = measure.load()
        samples = {}
        for name, sample in bench.round(number, count):
            samples[name] = sample
            print(
                f"{count:3} hosts, round {number}: {name:28} {sample.wall_s:7.3f} s{'' if sample.ok else '   WRONG'}",
                flush=True,
            )
        if number >= 0:
            found.append(Round(samples, load))
            print(f"    others used {found[-1].disturbance:.0%} of the machine", flush=True)
        if sum(each.quiet for each in found) == wanted:
            break
    return found


def measured(bench: Bench, hosts: list[int], wanted: int, patience_s: float) -> dict[str, Any]:
    """The whole document. Rounds that others disturbed are listed and left out of the figures, unless too few are left."""
    results = {}
    for count in hosts:
        rounds = rounds_of(bench, count, wanted, patience_s)
        quiet = [each for each in rounds if each.quiet]
        chosen = quiet if len(quiet) >= min(wanted, LEAST_ROUNDS) else rounds
        results[str(count)] = {
            "rounds": len(chosen),
            "left_out": [_disturbed(each) for each in rounds if each not in chosen],
            "load": [each.load for each in chosen],
            "disturbance": [each.disturbance for each in chosen],
            "cells": {
                name: cell(
                    [each.samples[name] for each in chosen],
                    [each.samples[Floor.name] for each in chosen],
                )
                for name in rounds[0].samples
            },
        }
    return {
        "what": "wall time of whole processes in seconds; ratio = times `ssh host true` to the same hosts in the same round",
        **measure.surroundings(PACKAGES),
        "round_trip_s": ROUND_TRIP_S,
        "wanted": WANTED,
        "results": results,
    }


def _disturbed(each: Round) -> dict[str, Any]:
    walls = {name: sample.wall_s for name, sample in each.samples.items()}
    return {"disturbance": each.disturbance, "load": each.load, "wall_s": walls}


def cell(samples: list[Sample], floor: list[Sample]) -> dict[str, Any]:
    """All samples of one cell and what they come to; `floor` are those of the same rounds."""
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
    """The results for people, in Markdown."""
    lines = [
        "| hosts | what | seconds | times the floor: median (min to max) | CPU s: here, hosts | round trips | wrong |",
        "|" + "---|" * 7,
    ]
    for count, result in document["results"].items():
        for name, cell in result["cells"].items():
            ratio, trips = cell["ratio"], cell["samples"][0]["detail"]["turns_per_host"] / 2
            hosts_cpu = f"{cell['hosts_cpu_s']['median']:.2f}" if cell["hosts_cpu_s"] else "?"
            lines.append(
                f"| {count} | {name} | {cell['wall_s']['median']:.2f} | {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}) "
                f"| {cell['cpu_s']['median']:.2f}, {hosts_cpu} | {trips:.0f} | {cell['wrong']} |"
            )
    return "\n".join(lines)


def main() -> None:
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
        help="seconds to wait before a round until others leave the machine alone",
    )
    parser.add_argument(
        "--peers",
        type=lambda text: text.split(","),
        default=[],
        help="pyinfra,ansible,ansible+mitogen, or all",
    )
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with Targets(folder, max(args.hosts), round_trip_s=ROUND_TRIP_S) as targets:
            peers = [kind for kind in others.ALL if kind.name in args.peers or "all" in args.peers]
            found, left_out = others.available(folder, targets.all, peers)
            bench = Bench(
                folder, targets, (Floor(folder, targets.all), Ours(folder, targets.all), *found)
            )
            document = {
                **measured(bench, args.hosts, args.rounds, args.patience),
                "left_out": left_out,
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(document))


if __name__ == "__main__":
    main()
