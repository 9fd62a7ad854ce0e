"""Checks of the documentation against the code: links, tasks, settings, completeness."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from provision.cli.config_files import read_file
from provision.cli.namespace import namespace
from provision.core.errors import SettingsError
from provision.recipes import host_recipe
from provision.settings import Settings
from tests.examples.pages import ROOT, blocks, name_of, pages, without_code

TASKS = frozenset(namespace().task_names)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
_PATH = re.compile(r"(?<![\w./-])((?:provision|tests|docs|templates|lab|bench|examples)/[\w./*-]+)")
_PLACEHOLDER = re.compile(r"\b(?:NOUN|VERB|NAME|X)\b")
ARCHITECTURE = ROOT / "docs" / "architecture.md"
_TASK = re.compile(r"\b(?:invoke|provision) ([a-z]+\.[a-z][a-z-]*|demo\b|doctor\b)(?![\w/])")


# --- links ----------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that headings of a page get."""
    headings = re.findall(r"(?m)^#+ (.*)$", without_code(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_link_targets_exist(page: Path) -> None:
    broken = []
    for inline, reference in _LINK.findall(without_code(page)):
        target = inline or reference
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_link_references_are_defined_and_used(page: Path) -> None:
    text = without_code(page)
    defined = set(re.findall(r"(?m)^\[([^\]]+)\]: ", text))
    used = set(re.findall(r"\]\[([^\]]+)\]", text))
    assert used == defined


# --- tasks and settings ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_tasks_on_a_page_exist(page: Path) -> None:
    assert sorted(set(_TASK.findall(page.read_text(encoding="utf-8"))) - TASKS) == []


def test_tasks_in_remedies_exist() -> None:
    sources = [
        path for suffix in ("py", "toml") for path in (ROOT / "provision").rglob(f"*.{suffix}")
    ]
    called = {task for path in sources for task in _TASK.findall(path.read_text(encoding="utf-8"))}
    assert {"mps.doctor", "dev.up"} < called
    assert sorted(called - TASKS) == []


def test_readme_lists_every_task() -> None:
    assert (
        sorted(
            TASKS
            - set(
                re.findall(
                    r"`([a-z]+\.[a-z-]+|demo|doctor)",
                    (ROOT / "README.md").read_text(encoding="utf-8"),
                )
            )
        )
        == []
    )


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_settings_on_a_page_are_valid(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page)):
        if block.language != "yaml":
            continue
        file = tmp_path / f"{number}.yaml"
        file.write_text(block.text, encoding="utf-8")
        level = read_file(file)
        assert level.data, f"{block.page}: a block of settings without a setting"
        try:
            Settings.from_levels([level])
        except SettingsError as error:
            pytest.fail(f"{block.page}: {error}")


def test_invalid_settings_on_a_page_are_found(tmp_path: Path) -> None:
    file = tmp_path / "invoke.yaml"
    file.write_text("provision:\n  disc_gb: 100\n")
    with pytest.raises(SettingsError, match="disc_gb"):
        Settings.from_levels([read_file(file)])


# --- pages that stand for code --------------------------------------------------------------------


def generator() -> ModuleType:
    """docs/generate_tasks.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "generate_tasks", ROOT / "docs" / "generate_tasks.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_task_reference_is_up_to_date() -> None:
    made = generator()
    assert made.page() == made.TARGET.read_text(encoding="utf-8"), (
        "run: python docs/generate_tasks.py"
    )


def diagnoses() -> Iterator[tuple[str, str]]:
    """(cause, fix) of every `Diagnosis` in the package; what a value is put into reads `…`."""
    for path in sorted((ROOT / "provision").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"Diagnosis", "KnownFailure"}
            ):
                cause, fix = (_text(word) for word in node.args[-2:])
                if cause and fix:
                    yield cause, fix


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or "…" for value in values)
        case _:
            return ""


def test_troubleshooting_lists_every_diagnosis() -> None:
    found = list(diagnoses())
    assert len(found) > 25
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    explained = {(row[0], row[2]) for row in rows if len(row) == 3}
    assert [pair for pair in found if pair not in explained] == []


def test_recipes_page_lists_every_resource(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [
        resource.name
        for resource in host_recipe(Settings(), tmp_path)
        if f"`{resource.name}`" not in text
    ] == []


def test_mock_page_lists_every_fault() -> None:
    from provision.testing.host_faults import STANDIN_FAULTS

    text = (ROOT / "docs" / "mock.md").read_text(encoding="utf-8")
    assert sorted(name for name in STANDIN_FAULTS if f"`{name}`" not in text) == []


def test_architecture_page_lists_every_package() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    packages = [path.parent.name for path in (ROOT / "provision").glob("*/__init__.py")]
    assert [name for name in packages if not re.search(rf"(?m)^    {name}/ +\w", text)] == []
    modules = [path.name for path in (ROOT / "provision").glob("*.py")]
    assert [name for name in modules if not name.startswith("__") and name not in text] == []


def test_architecture_page_fits_three_screens() -> None:
    lines = ARCHITECTURE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_paths_of_page_exist(page: Path) -> None:
    """Checks paths in backticks below these folders; NOUN, VERB, NAME and X are placeholders."""
    spans = re.findall(r"`([^`\n]+)`", without_code(page))
    paths = {
        path for span in spans for path in _PATH.findall(span) if not _PLACEHOLDER.search(path)
    }
    assert sorted(path for path in paths if not any(ROOT.glob(path.rstrip("/")))) == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_first_paragraph_of_page_names_its_readers(page: Path) -> None:
    if page in {ROOT / "README.md", ROOT / "CHANGELOG.md"}:
        pytest.skip("for every user")
    paragraph = page.read_text(encoding="utf-8").split("\n\n")[1]
    assert re.match(r"(For|This page is for) ", paragraph), paragraph


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_page_has_no_merge_markers(page: Path) -> None:
    assert re.findall(r"(?m)^(?:<<<<<<<|>>>>>>>|=======$)", page.read_text(encoding="utf-8")) == []
