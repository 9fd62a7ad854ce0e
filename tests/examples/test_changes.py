"""The patches of examples/changes apply to the repository, and their tests pass in the copy."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.examples.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PATCHES = sorted((ROOT / "examples" / "changes").glob("*.patch"))
RULES = (
    "tests/unit/test_script_files.py::test_every_file_states_its_purpose_and_its_inputs_first",
    *(
        f"tests/unit/test_repository_rules.py::{name}"
        for name in (
            "test_no_script_source_is_built_at_run_time",
            "test_use_case_of_each_task_is_at_the_path_of_its_name",
            "test_no_module_exceeds_the_line_limit",
            "test_no_function_exceeds_the_line_limit",
            "test_only_cli_and_report_print",
        )
    ),
)
_TEST = re.compile(r"(?m)^Test: python -m pytest (.+)$")
_PYTEST = """
import sys
from pathlib import Path
import pytest
status = pytest.main(sys.argv[1:])
import provision
assert Path(provision.__file__).is_relative_to(Path.cwd()), provision.__file__
sys.exit(status)
"""
"""`python -m pytest` that makes sure that the tests imported the package of the current folder."""


def header(patch: Path) -> str:
    """The plain text before the first file of the patch."""
    return patch.read_text(encoding="utf-8").partition("diff --git ")[0]


def call(folder: Path, argv: Sequence[str]) -> str:
    """The output of a program that must succeed in `folder`."""
    done = subprocess.run(
        argv,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(folder),
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(argv)}\n{done.stdout}"
    return done.stdout


def run_tests(copy: Path, arguments: Sequence[str]) -> None:
    """Run tests of the copy with the package of the copy. None that ran may fail."""
    command = [sys.executable, "-c", _PYTEST, "-q", "-p", "no:cacheprovider", *arguments]
    assert " passed" in call(copy, command)


def apply_patch(copy: Path, patch: Path) -> None:
    call(copy, ["git", "apply", "--check", str(patch)])
    call(copy, ["git", "apply", str(patch)])


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that git tracks."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    folder = tmp_path / "copy"
    for name in call(ROOT, ["git", "ls-files", "-z"]).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def test_every_patch_is_linked_from_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    linked = re.findall(r"\(\.\./examples/changes/([\w-]+\.patch)\)", page)
    assert sorted(linked) == [patch.name for patch in PATCHES]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_patch_applies_and_its_tests_pass(patch: Path, copy: Path) -> None:
    named = _TEST.search(header(patch))
    assert named, "the header names no test command"
    apply_patch(copy, patch)
    run_tests(copy, shlex.split(named[1]))


def test_all_patches_together_keep_the_rules_of_the_repository(copy: Path) -> None:
    for patch in PATCHES:
        apply_patch(copy, patch)
    run_tests(copy, RULES)
