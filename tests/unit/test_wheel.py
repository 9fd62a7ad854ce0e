"""The wheel holds the package, its data, the stand-ins of the mock and the templates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    (built,) = folder.glob("*.whl")
    return built


def shipped(folder: str) -> set[str]:
    """Files below a folder of the checkout, as a wheel names them."""
    paths = (
        path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()
    )
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts}


def test_wheel_holds_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {
            name.removeprefix("provision/")
            for name in archive.namelist()
            if name.startswith("provision/")
        }
    templates = {f"_templates/{name}" for name in shipped("templates")}
    assert templates
    assert held == shipped("provision") | templates


def test_stand_ins_are_executable_in_the_wheel(wheel: Path) -> None:
    programs = [
        path
        for path in (ROOT / "provision" / "testing" / "standins").rglob("*")
        if path.is_file() and os.access(path, os.X_OK)
    ]
    assert programs
    with zipfile.ZipFile(wheel) as archive:
        modes = {
            path: archive.getinfo(path.relative_to(ROOT).as_posix()).external_attr >> 16
            for path in programs
        }
    assert [path for path, mode in modes.items() if not mode & 0o111] == []


def test_installed_package_finds_its_templates(wheel: Path, tmp_path: Path) -> None:
    """Away from the checkout, as a user has it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = """
import json, provision
from provision.core.errors import TemplateError
from provision.templating import render
try:
    render("unknown", {}, project_dir=None)
except TemplateError as error:
    print(json.dumps([provision.__file__, error.why]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    where, why = json.loads(done.stdout)
    assert Path(where).is_relative_to(tmp_path)
    assert why == f"known templates: {', '.join(sorted(shipped('templates')))}"


@pytest.mark.slow
def test_installed_package_does_the_main_job_on_the_mock(wheel: Path, tmp_path: Path) -> None:
    """An empty environment with the wheel; of the checkout's environment only the dependencies."""
    environment, folder = tmp_path / "environment", tmp_path / "project"
    venv.create(environment)
    python = environment / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, *install], check=True, timeout=100)
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    folder.mkdir()
    done = subprocess.run(
        [environment / "bin" / "provision", "demo", "--json"],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps = json.loads(done.stdout)["steps"]
    assert {step["exit"] for step in steps} == {0}
    assert len(steps) > 5
    where = [str(python), "-c", "import provision; print(provision.__file__)"]
    printed = subprocess.run(where, cwd=folder, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == str(site / "provision" / "__init__.py")
