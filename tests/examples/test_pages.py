"""The code that the pages show runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.pages import blocks, name_of, pages

pytestmark = pytest.mark.timeout(600)
SHOWING = [page for page in pages() if any(block.file for block in blocks(page))]


@pytest.mark.parametrize("page", SHOWING, ids=name_of)
def test_tests_shown_on_a_page_pass(page: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    tests = 0
    for block in blocks(page):
        if block.file:
            path = tmp_path / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            tests += block.text.count("\ndef test_")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout
