"""Invoke's levels of configuration, read as plain mappings that keep their source: the settings of one run.

Invoke merges all its levels into one and forgets where a value came from; an error message must
not. The order is Invoke's own ("Configuration", hierarchy): /etc, the user's home, the project,
variables, the file given with -f, flags.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import invoke.util

from provision.cli.environment import ENV_HIDDEN, ENV_PREFIX
from provision.cloud.market import catalog, scheduling
from provision.core.errors import SettingsError
from provision.settings import Leaf, Level, Settings, env_levels, leaves, text_level

KEY = "provision"
SUFFIXES = ("yaml", "yml", "json", "py")


def load_settings(
    project_dir: Path, env: Mapping[str, str], flags: Mapping[str, str], runtime: str | None = None
) -> Settings:
    """The settings of a project. `flags` maps a setting's key to the text given with its flag. Raises SettingsError."""
    by_path = {leaf.path: leaf for leaf in leaves(Settings)}
    levels = file_levels(project_dir, env, runtime)
    own = {name[1:]: text for name, text in env.items() if name.startswith(ENV_HIDDEN)}
    own |= {
        name: text
        for name, text in env.items()
        if name.startswith(ENV_PREFIX) or name == ENV_PREFIX.rstrip("_")
    }
    at = len(levels) - 1 if runtime else len(levels)
    levels[at:at] = env_levels(Settings, own, ENV_PREFIX)
    levels += [_flag_level(by_path[(key,)], text) for key, text in flags.items()]
    return Settings.from_levels(levels, check=_fits_the_catalogue)


def _flag_level(leaf: Leaf, text: str) -> Level:
    """An empty flag is refused: `--name "$VM"`, where nobody set VM, does not mean the VM of the settings."""
    flag = "--" + leaf.path[-1].replace("_", "-")
    if not text.strip():
        fix = f"{flag} VALUE, or leave it out: then the settings say it"
        raise SettingsError("the flag says nothing", where=flag, why="it is empty", fix=fix)
    return text_level(flag, leaf, text)


def _fits_the_catalogue(settings: Settings) -> None:
    job = settings.dataflow.machine_type
    catalog.check_supported(settings.gpu)
    machine = catalog.machine_for(settings.gpu, settings.gpu_count, settings.machine_type, job)
    model = scheduling.model_for(settings.provisioning, settings.reservation, machine)
    try:
        catalog.validate_shape(
            settings.gpu, settings.gpu_count, machine, settings.disk_gb, provisioning=model
        )
    except SettingsError as error:
        if (
            error.where == "machine_type" and not settings.machine_type
        ):  # it follows from another setting
            error.where = "dataflow.machine_type" if machine == job else "gpu"
        raise
    scheduling.check(
        model=model,
        machine_type=machine,
        ttl_s=settings.ttl_s,
        action=settings.ttl_action.upper(),
        wait_s=scheduling.wait_for(model, settings.capacity_wait_s),
        reservation=settings.reservation,
    )
    catalog.check_driver(settings.gpu, settings.driver)


def file_levels(
    project_dir: Path, env: Mapping[str, str], runtime: str | None = None
) -> list[Level]:
    """One level per file that exists, the weakest first; the file given with -f is the last and must exist."""
    home = env.get("HOME") or str(Path.home())
    found = []
    for stem in ("/etc/invoke", f"{home}/.invoke", str(project_dir / "invoke")):
        path = next(
            (path for path in (Path(f"{stem}.{suffix}") for suffix in SUFFIXES) if path.is_file()),
            None,
        )
        if path is not None:
            found.append(read_file(path))
    if runtime:
        found.append(_runtime_level(runtime))
    return found


def _runtime_level(runtime: str) -> Level:
    path = Path(runtime).expanduser()
    if path.suffix.lstrip(".") not in SUFFIXES:
        why = f"it ends with none of {', '.join(SUFFIXES)}"
        raise SettingsError(
            "is no kind of file that holds settings",
            where=runtime,
            why=why,
            fix="write it as YAML, with a name that says so",
        )
    return read_file(path)


def runtime_path(words: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The file given with -f, --config or INVOKE_RUNTIME_CONFIG; `words` are the command line's, the program's name aside."""
    found = env.get("INVOKE_RUNTIME_CONFIG")
    before_dashes = words[: words.index("--")] if "--" in words else words
    for at, word in enumerate(before_dashes):
        if word in {"-f", "--config"}:
            found = before_dashes[at + 1] if at + 1 < len(before_dashes) else found
        elif word.startswith("--config="):
            found = word.partition("=")[2]
        elif word.startswith("-f") and not word.startswith("--"):
            found = word[2:].removeprefix("=")
    return found


def state_dir(env: Mapping[str, str]) -> Path:
    """Where keys, known hosts, journals and the mock live: $XDG_STATE_HOME/provision (XDG Base Directory Specification)."""
    home = env.get("XDG_STATE_HOME", "")
    base = (
        Path(home)
        if home.startswith("/")
        else Path(env.get("HOME") or str(Path.home())) / ".local" / "state"
    )
    return base / "provision"


# --- one file -------------------------------------------------------------------------------------


def read_file(path: Path) -> Level:
    """What the file sets under `provision`. Raises SettingsError with the line and column of what cannot be parsed."""
    source = _shown(path)
    try:
        text = path.read_text(encoding="utf-8") if path.suffix != ".py" else ""
    except OSError as error:
        raise SettingsError(
            "cannot be read", where=source, why=error.strerror or str(error), fix=f"ls -l {source}"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            "is not text", where=source, why=str(error), fix="save it as UTF-8"
        ) from error
    lines: dict[tuple[str, ...], int] = {}
    if path.suffix == ".py":
        whole: Any = _read_python(path, source)
    elif path.suffix == ".json":
        whole = _read_json(text, source)
    else:
        whole, lines = _read_yaml(text, source)
    return Level(source, _section(whole, source), lines)


def _shown(path: Path) -> str:
    absolute = path.absolute()
    return (
        str(absolute.relative_to(Path.cwd()))
        if absolute.is_relative_to(Path.cwd())
        else str(absolute)
    )


def _section(whole: Any, source: str) -> Mapping[str, object]:
    if whole is None:
        return {}
    if not isinstance(whole, Mapping):
        raise SettingsError(
            "holds no settings",
            where=source,
            why="its top level is not a mapping of keys to values",
            fix=f"begin with {KEY}:",
        )
    section = whole.get(KEY)
    if section is not None and not isinstance(section, Mapping):
        raise SettingsError(
            f"{KEY} is {section!r}",
            where=source,
            why="allowed: a mapping of keys to values",
            fix=f"indent the keys under {KEY}:",
        )
    return section or {}


def _read_python(path: Path, source: str) -> dict[str, object]:
    try:
        names = runpy.run_path(str(path))
    except Exception as error:  # the user's own code may raise anything
        line = getattr(error, "lineno", None) or _line_in(path, error)
        why = f"{type(error).__name__}: {error}"
        raise SettingsError(
            "fails when it is run", where=f"{source}, line {line}", why=why, fix=f"python3 {source}"
        ) from error
    names = {name: value for name, value in names.items() if not name.startswith("__")}
    module = next((name for name, value in names.items() if isinstance(value, ModuleType)), None)
    if module is not None:
        why = f"the module {module} stands at its top level, which Invoke cannot hold as a setting"
        raise SettingsError(
            "is refused by Invoke", where=source, why=why, fix=f"end the file with: del {module}"
        )
    return names


def _line_in(path: Path, error: Exception) -> int:
    trace, line = error.__traceback__, 1
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _read_json(text: str, source: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except json.JSONDecodeError as error:
        place = f"{source}, line {error.lineno}, column {error.colno}"
        raise SettingsError(
            "is not JSON", where=place, why=error.msg, fix=f"python3 -m json.tool {source}"
        ) from error


def _read_yaml(text: str, source: str) -> tuple[Any, dict[tuple[str, ...], int]]:
    yaml: Any = vars(invoke.util)["yaml"]  # the parser that Invoke itself uses, vendored or not
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines = {} if node is None else dict(_key_lines(node, source))
        return (None if node is None else loader.construct_document(node)), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        why = "; ".join(filter(None, (error.context, error.problem)))
        raise SettingsError(
            "is not YAML",
            where=place,
            why=why,
            fix="mend that line; YAML indents with spaces alone",
        ) from error
    except yaml.YAMLError as error:
        raise SettingsError(
            "is not YAML",
            where=source,
            why=" ".join(str(error).split()),
            fix="save it as UTF-8 text",
        ) from error


def _key_lines(root: Any, source: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """(path under `provision`, line) of each key; a key that is written twice is an error, where YAML would forget the first."""
    todo: list[tuple[tuple[str, ...], Any]] = [((), root)]
    seen: set[int] = set()
    while todo:
        path, node = todo.pop()
        if id(node) in seen or not isinstance(node.value, list):
            continue
        seen.add(id(node))
        first: dict[str, int] = {}
        for key, value in (pair for pair in node.value if isinstance(pair, tuple)):
            name, line = str(key.value), key.start_mark.line + 1
            at = (*path, name)
            if at[0] != KEY or name == "<<":
                continue
            if name in first:
                raise SettingsError(
                    f"{'.'.join(at)} is set twice",
                    where=f"{source}, line {line}",
                    why=f"it stands in line {first[name]} too",
                    fix="keep one",
                )
            first[name] = line
            yield at[1:], line
            todo.append((at, value))
