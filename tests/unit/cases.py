"""Cases as files: tests/data/RESOURCE/CASE.toml describes a resource, output and what it means.

about = "a sentence"
ensure = false                     # `ensure` gives no script; true is the default
ensure_has = ["…"]                 # texts that the script must hold

[settings]                         # the fields of the resource; special values:
                                   # {bytes = "…"}, {secret = "…"}, {repeat = "…", times = 9}
[facts]                            # the fields of `Facts`
[desired]                          # the whole desired state; left out: absent

[[reading]]
output = "…"                       # what the probe printed
state = {…}                        # left out: absent
unreadable = "regex"               # the error, instead of a state
differs = ["key", …]               # from what is desired

[[failure]]
output = "…"                       # what `ensure` printed
actual = {…}
cause = "regex"                    # left out: no diagnosis
fix = "regex"

[run]                              # the scripts run twice in a scratch root "$R"
before = "shell"                   # prepares the host
differs = ["key", …]               # what the first probe finds
fails = "regex"                    # `ensure` must fail with this text and change nothing
after = "shell"                    # must succeed at the end
"""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from provision import resources
from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import Secret
from provision.mps.daemon import compute_mode, daemon, outside

MODULES = (resources, compute_mode, daemon, outside)
"""Modules in which the class of a case is looked up."""
DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Case:
    """A case file."""

    path: Path
    table: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its path below tests/data, without suffix."""
        return self.path.relative_to(DATA).with_suffix("").as_posix()

    @property
    def resource(self) -> Resource:
        """The folder's resource with the settings of the case."""
        return make(self.path.parent.name, {"name": "it", **self.table.get("settings", {})})

    @property
    def facts(self) -> Facts:
        """The facts of the case."""
        return Facts(**_fields(self.table.get("facts", {})))

    @property
    def desired(self) -> State | None:
        """The desired state."""
        if "desired_keys" in self.table:
            return self.resource.desired(self.facts)
        return self._state(self.table.get("desired"))

    def _state(self, table: Mapping[str, Any] | None) -> State | None:
        return (
            None
            if table is None
            else {key: None if value == "<none>" else value for key, value in table.items()}
        )

    def list(self, key: str) -> list[Mapping[str, Any]]:
        """The `[[key]]` tables."""
        return [
            {**table, "state": self._state(table.get("state"))} for table in self.table.get(key, [])
        ]


def make(kind: str, settings: Mapping[str, Any]) -> Resource:
    """A resource from the name of its class in snake case."""
    name = "".join(word.title() for word in kind.split("_"))
    factory = next(getattr(home, name) for home in MODULES if hasattr(home, name))
    resource = factory(**_fields(settings))
    if not isinstance(resource, Resource):
        raise TypeError(f"{kind} is not a resource")
    return resource


def _fields(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value(value) for key, value in table.items()}


def _value(value: Any) -> Any:
    match value:
        case list():
            return tuple(_value(item) for item in value)
        case {"bytes": data, **rest} if not rest:
            return base64.b64decode(data)
        case {"secret": text, **rest} if not rest:
            return Secret(text)
        case {"repeat": text, "times": times, **rest} if not rest:
            return text * times
        case {"resource": str(kind)}:
            return make(kind, {key: inner for key, inner in value.items() if key != "resource"})
        case _:
            return value


@cache
def cases() -> tuple[Case, ...]:
    """Every case, by name."""
    # tests/data/mps holds texts for the readers of MPS.
    paths = sorted(path for path in DATA.glob("*/*.toml") if path.parent.name != "mps")
    return tuple(Case(path, tomllib.loads(path.read_text(encoding="utf-8"))) for path in paths)
