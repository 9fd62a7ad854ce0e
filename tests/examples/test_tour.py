"""Runs every command of the README's tour and compares its output with the README."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.examples.pages import ROOT, blocks, documented

pytestmark = pytest.mark.timeout(600)
README = ROOT / "README.md"
ELSEWHERE = re.compile(r"^make |--host |^provision vm\.delete$")
"""Commands of blocks that need another machine, a fresh clone or a terminal; they do not run."""
BANNER = re.compile(r"(?m)^mock: .*\n")
VARYING = (
    (re.compile(r" +\d+\.\d+ s$", re.MULTILINE), ""),
    (re.compile(r"\b\d+h\d\dm\b|\b\d+m\d\ds\b|\b\d+s\b"), "SPAN"),
    (re.compile(r" {2,}"), "  "),
    (re.compile(r"\$\d\.\d\d\b"), "$N.NN"),
    (re.compile(r"\bpid \d+, uid \d+"), "pid N, uid N"),
    (re.compile(r"\bworker:[0-9a-f]{12}\b"), "worker:DIGEST"),
)


class Step(NamedTuple):
    """A command of the README and the lines that it shows below it."""

    command: str
    shown: tuple[str, ...]


def steps(text: str) -> Iterator[Step]:
    """The steps of a console block; `#` comments aside."""
    for part in re.split(r"(?m)^\$ ", text)[1:]:
        first, *rest = part.rstrip("\n").split("\n")
        yield Step(first.partition("  #")[0].strip(), tuple(rest))


def tour() -> list[Step]:
    """Every block of the README that can be run here, as one list."""
    consoles = [list(steps(block.text)) for block in blocks(README) if block.language == "console"]
    return [
        step
        for block in consoles
        if not any(ELSEWHERE.search(step.command) for step in block)
        for step in block
    ]


def pattern(shown: Sequence[str]) -> re.Pattern[str]:
    """What the output must look like: `…` stands for any lines."""
    lines = [r"(?:.*\n)*?" if line == "…" else re.escape(plain(line)) + r"\n" for line in shown]
    return re.compile("".join(lines))


def plain(text: str) -> str:
    """The text without what differs from run to run."""
    for varying, instead in VARYING:
        text = varying.sub(instead, text)
    return text


def test_readme_tour_prints_what_the_readme_shows(tmp_path: Path) -> None:
    all_steps = tour()
    assert len(all_steps) > 15
    environ = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "hello.py").write_text(
        next(block.text for block in blocks(README) if block.file == "hello.py")
    )
    try:
        wrong = [problem for step in all_steps if (problem := differs(step, folder, environ))]
    finally:
        subprocess.run(
            ["provision", "mock.down"], cwd=folder, env=environ, capture_output=True, check=True
        )
    assert wrong == []


def differs(step: Step, folder: Path, environ: dict[str, str]) -> str:
    """How the command's output differs from what is shown; empty when it does not."""
    done = subprocess.run(
        ["sh", "-c", step.command],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    output = plain(BANNER.sub("", done.stdout))
    shown = [line for line in step.shown if not BANNER.match(f"{line}\n")]
    if not pattern(shown).fullmatch(output):
        return f"$ {step.command}\n{output}"
    banners = sum(bool(BANNER.match(f"{line}\n")) for line in step.shown)
    return f"$ {step.command}: no banner" if banners and not BANNER.search(done.stdout) else ""


@pytest.mark.parametrize(
    ("shown", "output", "matches"),
    [
        (["a  0.1 s", "…", "c"], "a  9.99 s\nb\nb\nc\n", True),
        (["a", "c"], "a\nb\nc\n", False),
        (["…", "c"], "c\n", True),
        ([], "a\n", False),
        ([], "", True),
        (["a.c"], "abc\n", False),
    ],
)
def test_comparison_finds_difference(shown: list[str], output: str, *, matches: bool) -> None:
    assert bool(pattern(shown).fullmatch(plain(output))) is matches


# --- docs/json.md ---------------------------------------------------------------------------------


CALLS = """
    doctor; mock.up; mock.status; vm.create; vm.provision; vm.list; vm.show; vm.ssh-config
    vm.user-data; inventory.list; inventory.ansible; image.render; image.build; dev.up
    dev.devcontainer
    dev.run hello.py; dev.exec -- true; vm.ssh -- true; vm.copy hello.py /home/provision
    mps.plan; mps.explain --text torch.mps; mps.enable; mps.status; mps.top; mps.doctor
    mps.disable; dev.down
    vm.offers --gpu l4; vm.cost; vm.serial; vm.label team=ml; vm.stop; vm.extend 2h
    vm.start; vm.reset; vm.wait
    vm.delete --yes; vm.gc; mock.down
"""


def test_json_documents_have_the_documented_keys(tmp_path: Path) -> None:
    wanted = documented()
    assert wanted.pop("demo") == {"steps"}  # CI runs it in a separate stage
    # The mock refuses it; tests/unit/mps/test_bench_run.py compares its keys.
    wanted.pop("mps.bench")
    folder = tmp_path / "project"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "hello.py").write_text("print('not JSON')\n")
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    found = {}
    for call in re.split(r"[;\n]\s*", CALLS.strip()):
        words, dashes, rest = call.partition(" -- ")
        argv = [*words.split(), "--json", *([dashes.strip(), *rest.split()] if dashes else [])]
        program = [sys.executable, "-m", "provision", *argv]
        done = subprocess.run(
            program,
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (call, done.stdout, done.stderr)
        found[argv[0]] = set(json.loads(done.stdout))
    assert found == wanted
