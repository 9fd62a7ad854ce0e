"""Rules of the repository that a program can check: sizes, imports, scripts, lock files."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from provision.cli.namespace import namespace

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "provision"
LOCKS = ("runtime", "testing", "dev")

MODULE_LINES = 400
FUNCTION_LINES = 40

PRINTERS = ("cli/", "report/", "mps/daemon/programs/")

# Written in pieces, so that this file holds none of them.
REGISTRIES = (
    "pyp" + "i.org",
    "pythonhosted" + ".org",
    "deb.debian" + ".org",
    "npmjs" + ".org",
    "proxy.golang" + ".org",
)
MACHINE_PATHS = ("/wor" + "k/main", "/wor" + "k/shared", "/roo" + "t/.pyenv", "/far" + "m/")


# --- what is read ---------------------------------------------------------------------------------


@cache
def modules() -> Mapping[str, ast.Module]:
    """The syntax trees of all modules of the package, by path."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in paths
    }


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that git tracks or would track."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return tuple(
        path
        for name in listing.split("\0")
        if name and (path := ROOT / name).is_file() and not path.is_symlink()
    )


def called(node: ast.Call) -> str:
    """The last part of the name of the called function."""
    return (
        node.func.id
        if isinstance(node.func, ast.Name)
        else node.func.attr
        if isinstance(node.func, ast.Attribute)
        else ""
    )


def is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_file(node: ast.expr | None) -> bool:
    """`HERE / "name.sh"`: a file of the package."""
    if (
        not isinstance(node, ast.BinOp)
        or not isinstance(node.op, ast.Div)
        or not isinstance(node.left, ast.Name)
    ):
        return False
    return (
        node.left.id == "HERE"
        and isinstance(node.right, ast.Constant)
        and str(node.right.value).endswith(".sh")
    )


@cache
def literals(tree: ast.Module) -> frozenset[str]:
    """Names bound exactly once at module level, to one string literal."""
    found: list[str] = []
    rebound: list[str] = []
    for node in ast.walk(tree):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign | ast.AugAssign)
            else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                text = (
                    not isinstance(node, ast.AugAssign)
                    and is_text(getattr(node, "value", None))
                    and node in tree.body
                )
                (found if text else rebound).append(target.id)
    return frozenset(name for name in found if found.count(name) == 1 and name not in rebound)


def imported_literals(tree: ast.Module) -> frozenset[str]:
    """Names imported from a module of the package in which they are literals."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("provision."):
            path = (node.module or "").removeprefix("provision.").replace(".", "/")
            source = modules().get(f"{path}.py") or modules().get(f"{path}/__init__.py")
            names |= {
                alias.asname or alias.name
                for alias in node.names
                if source and alias.name in literals(source)
            }
    return frozenset(names)


def built_sources(tree: ast.Module) -> list[int]:
    """Lines on which the source of a script is neither a literal nor a file of the package."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) in {"script", "Script"}
    ]
    if not calls:
        return []
    constants = literals(tree) | imported_literals(tree)
    lines = []
    for node in calls:
        source = (
            node.args[0]
            if node.args
            else next((word.value for word in node.keywords if word.arg == "source"), None)
        )
        if not (
            is_text(source)
            or is_file(source)
            or (isinstance(source, ast.Name) and source.id in constants)
        ):
            lines.append(node.lineno)
    return lines


# --- shell text -----------------------------------------------------------------------------------


def test_no_script_source_is_built_at_run_time() -> None:
    """Only shell.py builds scripts; other modules pass constants or files and bind the data."""
    built = [
        f"{name}:{line}"
        for name, tree in modules().items()
        if name != "core/shell.py"
        for line in built_sources(tree)
    ]
    assert built == []


@pytest.mark.parametrize(
    "source",
    [
        'script(f"rm {x}")',
        'script("rm %s" % x)',
        'script("rm {}".format(x))',
        'script("rm " + x)',
        "script(x)",
        "script(source=x)",
        "script()",
        'A = "a"\nA += x\nscript(A)',
        'A = "a"\nA = x\nscript(A)',
        'A = "a" + x\nscript(A)',
        'def f(x):\n    a = "a"\n    return script(a)',
        "shell.Script(self.text)",
    ],
)
def test_built_script_source_is_found(source: str) -> None:
    assert built_sources(ast.parse(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        'script(HERE / "a.sh", x=x)',
        'script("a" "b", x=x)',
        'A = "a"\nscript(A, x=x)',
        'A: Final = """a"""\nscript(source=A)',
        "other(x)",
    ],
)
def test_constant_script_source_is_accepted(source: str) -> None:
    assert built_sources(ast.parse(source)) == []


# --- where the use case of a task is --------------------------------------------------------------


def use_case_of(task: str) -> str:
    """The function that a task calls: `vm_user_data` for `vm.user-data`."""
    return task.replace(".", "_").replace("-", "_")


def defines_use_case(task: str) -> bool:
    """True when `commands/NOUN/VERB.py`, or a module below `commands/NOUN/VERB/`, defines it."""
    path = "commands/" + task.replace("-", "_").replace(".", "/")
    return any(
        isinstance(node, ast.FunctionDef) and node.name == use_case_of(task)
        for name, tree in modules().items()
        if name == f"{path}.py" or name.startswith(f"{path}/")
        for node in tree.body
    )


def test_use_case_of_each_task_is_at_the_path_of_its_name() -> None:
    assert {name for name in namespace().task_names if not defines_use_case(name)} == set()


# --- size, output, imports ------------------------------------------------------------------------


def test_no_module_exceeds_the_line_limit() -> None:
    counts = {
        name: len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in modules()
    }
    assert {name: lines for name, lines in counts.items() if lines > MODULE_LINES} == {}


def test_no_function_exceeds_the_line_limit() -> None:
    functions = (
        (f"{name}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert {name: lines for name, lines in functions if lines > FUNCTION_LINES} == {}


def test_only_cli_and_report_print() -> None:
    printing = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        if not name.startswith(PRINTERS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert printing == []


def loaded_by(module: str) -> set[str]:
    """Top-level packages that a fresh interpreter holds after importing `module`."""
    code = (
        f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["provision", "provision.cli.main", "provision.testing.plugin"])
def test_start_up_imports_no_heavy_library(module: str) -> None:
    """`invoke --list`, and pytest in every project with this plugin, import these modules."""
    heavy = {"google", "fabric", "paramiko", "pydantic", "jinja2", "werkzeug", "rich", "tenacity"}
    assert loaded_by(module) & heavy == set()


def test_no_archive_is_unpacked_with_the_filter_argument() -> None:
    """`extractall(filter=…)` came with Python 3.11.4; Debian 12 has 3.11.2."""
    unpacking = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and called(node) in {"extract", "extractall"}
        and any(word.arg == "filter" for word in node.keywords)
    ]
    assert unpacking == []


# --- the repository -------------------------------------------------------------------------------


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {words}"
        for path in tracked()
        if b"\0" not in (data := path.read_bytes())
        for words in (*REGISTRIES, *MACHINE_PATHS)
        if words.encode() in data
    ]
    assert found == []


def project() -> Mapping[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def locked(name: str) -> dict[str, list[str]]:
    """Each pinned requirement of a lock file (markers included) with its hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    pins: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = re.split(r"\s+--hash=", line.strip())
        pins[requirement.strip()] = hashes
    return pins


def wanted(name: str) -> list[Requirement]:
    """The requirements of pyproject.toml that the lock file must contain."""
    table = project()["project"]
    assert isinstance(table, dict)
    extras = table["optional-dependencies"]
    names = (
        table["dependencies"]
        + {"runtime": [], "testing": extras["testing"], "dev": extras["testing"] + extras["dev"]}[
            name
        ]
    )
    build = (ROOT / "requirements" / "build.in").read_text(encoding="utf-8").splitlines()
    own = [line for line in build if line and not line.startswith("#")]
    return [
        requirement
        for text in [*names, *own]
        if (requirement := Requirement(text)).name != table["name"]
    ]


@pytest.mark.parametrize("name", LOCKS)
def test_lock_file_pins_everything_by_hash_and_names_no_index(name: str) -> None:
    pins = locked(name)
    assert len(pins) > 10
    assert [
        pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [\w.'()<>=! ]+)?", pin)
    ] == []
    assert [pin for pin, hashes in pins.items() if not hashes] == []
    assert [
        found
        for hashes in pins.values()
        for found in hashes
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", found)
    ] == []


@pytest.mark.parametrize("name", LOCKS)
def test_lock_file_satisfies_the_requirements(name: str) -> None:
    pins = {pin.name: pin for pin in map(Requirement, locked(name))}
    missing = [str(want) for want in wanted(name) if want.name.lower() not in pins]
    assert missing == []
    outdated = [
        str(want)
        for want in wanted(name)
        if not want.specifier.contains(
            next(iter(pins[want.name.lower()].specifier)).version, prereleases=True
        )
    ]
    assert outdated == []


def test_lock_files_contain_one_another() -> None:
    """They are installed into one .venv, one after the other."""
    runtime, testing, dev = (set(locked(name)) for name in LOCKS)
    assert runtime < testing < dev


def test_build_backend_is_locked() -> None:
    build = project()["build-system"]
    assert isinstance(build, dict)
    lines = (ROOT / "requirements" / "build.in").read_text(encoding="utf-8").splitlines()
    assert build["requires"] == [line for line in lines if line and not line.startswith("#")]


def test_changelog_has_a_section_for_the_version() -> None:
    table = project()["project"]
    assert isinstance(table, dict)
    assert re.search(
        rf"(?m)^## {re.escape(table['version'])} ",
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    )
