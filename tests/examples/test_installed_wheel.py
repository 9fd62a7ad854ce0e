"""The installed wheel walks the main job on the mock with its declared dependencies alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.examples.pages import ROOT

pytestmark = pytest.mark.timeout(300)


def locked_runtime() -> list[str]:
    """Names of the distributions that requirements/runtime.txt pins for this interpreter."""
    text = (ROOT / "requirements/runtime.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [re.split(r"\s+--hash=", line)[0] for line in text.splitlines() if line.strip()]
    pins = [Requirement(line) for line in lines]
    return [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate()]


def copy_distribution(name: str, site: Path) -> None:
    """Copy the files of an installed distribution that lie in its site-packages folder."""
    for file in distribution(name).files or ():
        source = Path(str(file.locate()))
        if ".." not in file.parts and source.is_file():
            target = site / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that holds what the wheel declares, and the wheel; not the checkout."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in locked_runtime():
        copy_distribution(name, site)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install"]
    flags = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, *flags, str(wheel)], capture_output=True, check=True, timeout=60)
    return folder


def test_installed_wheel_runs_the_main_tasks(environment: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    where = "import provision; print(provision.__file__)"
    python = [str(environment / "bin/python"), "-c", where]
    assert str(environment) in subprocess.check_output(python, cwd=folder, text=True, timeout=60)
    done = subprocess.run(
        [str(environment / "bin/provision"), "demo"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(\d+) of \1 steps done", done.stdout + done.stderr)
