"""The wheel holds the package, its data, the stand-ins of the mock and the templates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
