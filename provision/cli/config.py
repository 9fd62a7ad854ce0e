"""The settings of one run: Invoke's levels of configuration, each value with its source.

Invoke merges its levels and forgets where a value came from, which an error message must report.
The order is Invoke's ("Configuration", hierarchy): /etc, the user's home, the project, environment
variables, the file given with -f, flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provision.cli.config_files import read_file
from provision.cli.environment import ENV_HIDDEN, ENV_PREFIX
from provision.cloud.market import scheduling
from provision.cloud.market.machine_choice import choose_machine_type
from provision.cloud.market.shape_rules import check_driver, check_shape, check_supported
from provision.core.errors import SettingsError
from provision.settings import Leaf, Level, Settings, env_levels, leaves, text_level

SUFFIXES = ("yaml", "yml", "json", "py")
"""The kinds of configuration file, in Invoke's order of preference."""


def load_settings(
    project_dir: Path, env: Mapping[str, str], flags: Mapping[str, str], runtime: str | None = None
) -> Settings:
    """Return the settings of a project.

    `flags` maps a setting's key to the text of its flag; `runtime` is the file given with -f.
    Raises `SettingsError` for an unreadable file and for an invalid value.
    """
    by_path = {leaf.path: leaf for leaf in leaves(Settings)}
    levels = [
        *_file_levels(project_dir, env),
        *env_levels(Settings, _settings_variables(env), ENV_PREFIX),
        *([_runtime_level(runtime)] if runtime else []),
        *(_flag_level(by_path[(key,)], text) for key, text in flags.items()),
    ]
    return Settings.from_levels(levels, check=_check_machine)


def state_dir(env: Mapping[str, str]) -> Path:
    """Return the folder of keys, known hosts, journals and the mock: $XDG_STATE_HOME/provision.

    A relative or unset variable means ~/.local/state (XDG Base Directory Specification).
    """
    state_home = env.get("XDG_STATE_HOME", "")
    if not state_home.startswith("/"):
        state_home = f"{env.get('HOME') or Path.home()}/.local/state"
    return Path(state_home) / "provision"


def _file_levels(project_dir: Path, env: Mapping[str, str]) -> list[Level]:
    """Read the files that exist, the one with the lowest precedence first."""
    home = env.get("HOME") or str(Path.home())
    levels = []
    for stem in ("/etc/invoke", f"{home}/.invoke", str(project_dir / "invoke")):
        paths = (Path(f"{stem}.{suffix}") for suffix in SUFFIXES)
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            levels.append(read_file(path))
    return levels


def _settings_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set settings; those renamed for Invoke under their own names."""
    hidden = {name[1:]: text for name, text in env.items() if name.startswith(ENV_HIDDEN)}
    plain = {
        name: text
        for name, text in env.items()
        if name.startswith(ENV_PREFIX) or name == ENV_PREFIX.rstrip("_")
    }
    return hidden | plain


def _runtime_level(runtime: str) -> Level:
    path = Path(runtime).expanduser()
    if path.suffix.lstrip(".") not in SUFFIXES:
        raise SettingsError(
            "is not a kind of file that holds settings",
            where=runtime,
            why=f"it ends with none of {', '.join(SUFFIXES)}",
            fix="write it as YAML, with the suffix .yaml",
        )
    return read_file(path)


def _flag_level(leaf: Leaf, text: str) -> Level:
    """Return the level of one flag.

    Raises `SettingsError` for an empty text: `--name "$VM"` with VM unset must not select the VM of
    the settings.
    """
    flag = "--" + leaf.path[-1].replace("_", "-")
    if not text.strip():
        fix = f"{flag} VALUE, or leave it out to use the settings"
        raise SettingsError("the flag has no value", where=flag, why="it is empty", fix=fix)
    return text_level(flag, leaf, text)


def _check_machine(settings: Settings) -> None:
    """Raise `SettingsError` if GPU, machine type, disk, driver and lifetime do not fit together."""
    job = settings.dataflow.machine_type
    check_supported(settings.gpu)
    machine = choose_machine_type(settings.gpu, settings.gpu_count, settings.machine_type, job)
    model = scheduling.provisioning_model(settings.provisioning, settings.reservation, machine)
    try:
        check_shape(settings.gpu, settings.gpu_count, machine, settings.disk_gb, provisioning=model)
    except SettingsError as error:
        if error.where == "machine_type" and not settings.machine_type:  # derived from another key
            error.where = "dataflow.machine_type" if machine == job else "gpu"
        raise
    scheduling.check(
        model=model,
        machine_type=machine,
        ttl_s=settings.ttl_s,
        action=settings.ttl_action.upper(),
        wait_s=scheduling.capacity_wait_s(model, settings.capacity_wait_s),
        reservation=settings.reservation,
    )
    check_driver(settings.gpu, settings.driver)
