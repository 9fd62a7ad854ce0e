"""The public names of the package: they exist, have their types and are imported late."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import provision
import provision.testing

ROOT = Path(__file__).parents[2]
PACKAGES = (provision, provision.testing)
LOADED = "print(*{name.partition('.')[0] for name in sys.modules})"
"""Python that prints the imported top-level packages."""
HEAVY = {
    "google",
    "fabric",
    "invoke",
    "jinja2",
    "paramiko",
    "pydantic",
    "rich",
    "tenacity",
    "werkzeug",
}


def for_type_checkers(package: ModuleType) -> dict[str, str]:
    """Each name that mypy sees, with the module it comes from."""
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_public_name_is_the_object_that_type_checkers_see(package: ModuleType) -> None:
    seen = for_type_checkers(package)
    assert sorted(seen) == package.__all__
    for name, module in seen.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_unknown_name_raises_attribute_error(package: ModuleType) -> None:
    with pytest.raises(
        AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"
    ):
        package.nothing  # noqa: B018


def test_submodules_can_be_imported() -> None:
    code = (
        "from provision.core import engine; from provision.testing import host_faults; "
        "print(engine.__name__, host_faults.__name__)"
    )
    assert _fresh(code) == "provision.core.engine provision.testing.host_faults"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_import_provision_imports_no_library(package: ModuleType) -> None:
    loaded = _fresh(f"import sys, {package.__name__}; {LOADED}")
    assert set(loaded.split()) & HEAVY == set()


def test_names_for_a_resource_import_no_library() -> None:
    names = "Directory, Facts, File, RemotePath, Resource, Script, State, Unit, script"
    loaded = _fresh(f"import sys; from provision import {names}; {LOADED}")
    assert set(loaded.split()) & HEAVY == set()


def test_ten_line_resource_needs_no_other_import() -> None:
    link = provision.Directory(name="data", path="/var/lib/data")
    assert isinstance(link, provision.Resource)
    assert isinstance(link.probe(), provision.Script)
    assert link.desired(provision.Facts()) == {"mode": "0755"}
    assert provision.Settings().name == "dev"


def _fresh(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
