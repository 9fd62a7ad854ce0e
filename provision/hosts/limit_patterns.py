"""Selects hosts by a pattern, the value of `--limit`. Pure.

The parts of a pattern stand between commas. Names and globs add hosts: `a,b*` selects a and every
host whose name begins with b. Filters (`gpu=l4`, `state=running`) restrict the selection: a host
must satisfy each key, where several values of one key are alternatives. `!` before a part excludes
what it matches. `all`, or a pattern without names, selects every host that the filters admit.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from provision.core.errors import UsageError
from provision.core.model import Host

EVERYTHING = "all"
KEYS = ("name", "state", "gpu", "zone", "machine_type", "source", "label.KEY")
"""The keys of filters."""
STATES = (
    *("running", "terminated", "stopped", "stopping", "suspended", "suspending"),
    *("pending", "pending_stop", "provisioning", "staging", "repairing", "deprovisioning"),
    "static",
)
"""The values of `state`: `Instance.status` of the Compute Engine API in lower case, and `static`
for a host of the settings."""

Traits: TypeAlias = Mapping[str, frozenset[str]]
"""The properties of one host: for each of the `KEYS`, every accepted spelling of its value, in
lower case."""

_FILTER = re.compile(r"!?\s*(?P<key>[^=!]*?)\s*=\s*(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class _Selection:
    """A parsed pattern: names and globs, and the values of each filter key."""

    included: tuple[str, ...]
    excluded: tuple[str, ...]
    required: Mapping[str, Sequence[str]]
    forbidden: Mapping[str, Sequence[str]]

    def admits(self, host: Host, traits: Mapping[str, Traits]) -> bool:
        """Return whether the pattern selects the host."""
        return (
            (not self.included or any(_matches(host, part) for part in self.included))
            and not any(_matches(host, part) for part in self.excluded)
            and all(_has_trait(host, key, values, traits) for key, values in self.required.items())
            and not any(
                _has_trait(host, key, values, traits) for key, values in self.forbidden.items()
            )
        )


def has_filters(pattern: str) -> bool:
    """Return whether a pattern has filters, which need the current properties of the hosts."""
    return "=" in pattern


def select_hosts(
    hosts: Sequence[Host], pattern: str, traits: Mapping[str, Traits] | None = None
) -> list[Host]:
    """Return the hosts that a pattern selects, in the inventory's order; possibly none.

    `traits` are the properties of each host, by its name. Raises `UsageError` for a name that
    matches no host (a misspelt exclusion would act on a host that it should exclude), for a filter
    with an unknown key or state, and for a pattern without parts.
    """
    selection = _parse(hosts, pattern)
    return [host for host in hosts if selection.admits(host, traits or {})]


def select_by_name(hosts: Sequence[Host], pattern: str) -> list[Host]:
    """Return the hosts that a pattern without filters selects.

    Raises `UsageError` when there are none, and as `select_hosts` does.
    """
    selected = select_hosts(hosts, pattern)
    if not selected:
        raise no_host_error(hosts, pattern)
    return selected


def no_host_error(hosts: Sequence[Host], pattern: str) -> UsageError:
    """Return the error to raise for a pattern that selects none of the hosts."""
    return UsageError(
        "the pattern selects no host",
        where=repr(pattern),
        why=_list_names(hosts),
        fix="--limit '*'",
    )


def included_names(pattern: str) -> list[str]:
    """Return the names and globs of a pattern that add hosts."""
    return [part for part in _parts(pattern) if not has_filters(part) and not part.startswith("!")]


def _parse(hosts: Sequence[Host], pattern: str) -> _Selection:
    parts = _parts(pattern)
    if not parts:
        raise no_host_error(hosts, pattern)
    names = [part for part in parts if not has_filters(part)]
    exclusions = {part for part in names if _is_exclusion(hosts, part)}
    included = tuple(part for part in names if part not in exclusions)
    excluded = tuple(part.removeprefix("!") for part in names if part in exclusions)
    for part in (*included, *excluded):
        _check_name(hosts, part, pattern)
    return _Selection(
        included, excluded, _filters(parts, negated=False), _filters(parts, negated=True)
    )


def _parts(pattern: str) -> list[str]:
    return [part.strip() for part in pattern.split(",") if part.strip()]


def _is_exclusion(hosts: Sequence[Host], part: str) -> bool:
    return part.startswith("!") and all(host.name != part for host in hosts)


def _check_name(hosts: Sequence[Host], part: str, pattern: str) -> None:
    if not part:
        raise UsageError(
            "a '!' alone excludes no host",
            where="--limit",
            why="no name and no filter follows it",
            fix="--limit '!NAME'",
        )
    if part != EVERYTHING and not any(_matches(host, part) for host in hosts):
        raise UsageError(
            f"no host matches {part!r}", where=pattern, why=_list_names(hosts), fix="--limit '*'"
        )


def _filters(parts: Sequence[str], *, negated: bool) -> dict[str, list[str]]:
    """Return the values of each filter key, from the filters with or without `!`."""
    filters: dict[str, list[str]] = {}
    for part in parts:
        match = _FILTER.fullmatch(part)
        if match is None or part.startswith("!") != negated:
            continue
        _check_filter(part, match["key"], match["value"], "!" if negated else "")
        filters.setdefault(match["key"], []).append(match["value"].lower())
    return filters


def _check_filter(part: str, key: str, value: str, sign: str) -> None:
    if key not in KEYS[:-1] and not re.fullmatch(r"label\.[^.\s]+", key):
        raise UsageError(
            f"there is no filter {key!r}",
            where=part,
            why=f"filters are {', '.join(KEYS)}",
            fix=f"--limit '{sign}{_nearest(key, KEYS)}={value}'",
        )
    if key == "state" and not fnmatch.filter(STATES, value.lower()):
        known = f"{', '.join(STATES[:4])} and so on, in Compute Engine's words, and static"
        raise UsageError(
            f"there is no state {value!r}",
            where=part,
            why=f"states are {known}",
            fix=f"--limit '{sign}state={_nearest(value.lower(), STATES)}'",
        )


def _nearest(word: str, words: Sequence[str]) -> str:
    """Return the most similar word; the first one when none is similar."""
    return next(iter(difflib.get_close_matches(word, words, n=1)), words[0])


def _has_trait(host: Host, key: str, values: Sequence[str], traits: Mapping[str, Traits]) -> bool:
    known = {"name": frozenset({host.name.lower()}), **traits.get(host.name, {})}
    return any(
        fnmatch.fnmatchcase(spelling, value) for spelling in known.get(key, ()) for value in values
    )


def _matches(host: Host, part: str) -> bool:
    return part in (EVERYTHING, host.name) or fnmatch.fnmatchcase(host.name, part)


def _list_names(hosts: Sequence[Host]) -> str:
    if not hosts:
        return "the inventory is empty"
    return "known hosts: " + ", ".join(host.name for host in hosts)
