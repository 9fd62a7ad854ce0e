"""The start-up time of a command: `invoke --list` against an empty tasks file, and imports.

    .venv/bin/python -m bench.startup --rounds 25 --output bench/results/startup.json

Both are measured in turn, in one run; the ratio is that of each round.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bench import measure

OURS = "from provision.cli import namespace_for\n\nnamespace = namespace_for(__file__)\n"
WANTED = 1.15
"""At most so many times an empty tasks file."""
PACKAGES = ("provision-gpu", "invoke", "fabric", "paramiko", "pydantic")
_LINE = re.compile(r"import time:\s*(\d+) \|\s*\d+ \|\s*([\w.]+)")
_SETTINGS = "provision: {gpu: none, hosts: {here: {address: local, become: none}}}\n"


def measure_listing(folder: Path, rounds: int) -> dict[str, Any]:
    """`invoke --list` with our tasks and with an empty tasks file."""
    invoke = str(Path(sys.executable).with_name("invoke"))
    for name, text in (("empty", ""), ("ours", OURS)):
        (folder / name).mkdir()
        (folder / name / "tasks.py").write_text(text)
    found: dict[str, list[measure.Sample]] = {"empty": [], "ours": []}
    for number in range(-1, rounds):
        if number % 5 == 0:
            measure.wait_for_quiet(10.0)
        for name in ("empty", "ours") if number % 2 else ("ours", "empty"):
            ended = measure.timed([[invoke, "--list"]], folder=folder / name, env=_env(folder))
            if number >= 0:
                found[name].append(ended.sample)
    walls = {name: [sample.wall_s for sample in samples] for name, samples in found.items()}
    cpus = {name: [sample.cpu_s for sample in samples] for name, samples in found.items()}
    return {
        "wall_s": {name: measure.summary(values) for name, values in walls.items()},
        "cpu_s": {name: measure.summary(values) for name, values in cpus.items()},
        "ratio": measure.summary(measure.ratios(walls["ours"], walls["empty"])),
        "cpu_ratio": measure.summary(measure.ratios(cpus["ours"], cpus["empty"])),
        "samples_wall_s": walls,
    }


def measure_imports(folder: Path) -> dict[str, Any]:
    """Return the import time of each package, in ms, for `vm.provision` over SSH."""
    (folder / "project").mkdir()
    (folder / "project" / "invoke.yaml").write_text(_SETTINGS)
    code = (
        "import sys; sys.argv = ['provision', 'vm.provision', '--limit', 'here', '--check']; "
        "import provision.hosts.ssh.connection; from provision.cli.main import main; main()"
    )
    for _ in range(2):  # the first compiles
        command = [sys.executable, "-X", "importtime", "-c", code]
        done = subprocess.run(
            command,
            cwd=folder / "project",
            env=_env(folder),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    packages: Counter[str] = Counter()
    for own_us, module in _LINE.findall(done.stderr):
        packages[module.partition(".")[0]] += int(own_us)
    return {
        "modules": len(_LINE.findall(done.stderr)),
        "ms": {name: round(us / 1000, 1) for name, us in packages.most_common(14)},
    }


def _env(folder: Path) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "XDG_STATE_HOME": str(folder / "state"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        document = {
            "what": "`invoke --list` with our tasks.py, and with an empty one in the same round",
            **measure.surroundings(PACKAGES),
            "rounds": args.rounds,
            "wanted": WANTED,
            "load": measure.load(),
            "list": measure_listing(Path(name), args.rounds),
            "imports_of_vm_provision": measure_imports(Path(name)),
        }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    found = document["list"]
    for name in ("wall_s", "cpu_s", "ratio", "cpu_ratio"):
        print(f"invoke --list, {name}: {found[name]}")
    print("imports, ms:", document["imports_of_vm_provision"])


if __name__ == "__main__":
    main()
