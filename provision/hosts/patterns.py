"""Which of the hosts a pattern means. Pure."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from provision.core.errors import UsageError
from provision.core.model import Host

EVERYTHING = "all"
KEYS = ("name", "state", "gpu", "zone", "machine_type", "source", "label.KEY")
"""What a filter may ask for."""
STATES = (
    *(
        "running",
        "terminated",
        "stopped",
        "stopping",
        "suspended",
        "suspending",
        "pending",
        "pending_stop",
    ),
    *("provisioning", "staging", "repairing", "deprovisioning", "static"),
)
"""What a state may be: `Instance.status` of the Compute Engine API in lower case, and ours for a
host of the settings."""

Traits: TypeAlias = Mapping[str, frozenset[str]]
"""What is true of one host: each of the `KEYS` it has, with every way to write its value, in lower
case."""

_FILTER = re.compile(r"!?\s*(?P<key>[^=!]*?)\s*=\s*(?P<value>.*)", re.DOTALL)


def filters(pattern: str) -> bool:
    """True when the pattern asks for more than names: what is true of a host now has to be known then."""
    return "=" in pattern


def select(hosts: Sequence[Host], pattern: str) -> list[Host]:
    """The hosts that `matching` finds by name. Raises `UsageError` when there is none."""
    left = matching(hosts, pattern)
    if not left:
        raise nobody(hosts, pattern)
    return left


def nobody(hosts: Sequence[Host], pattern: str) -> UsageError:
    """The error for a pattern that means none of the hosts."""
    return UsageError(
        "the pattern leaves no host", where=repr(pattern), why=_known(hosts), fix="--limit '*'"
    )


def names_in(pattern: str) -> list[str]:
    """The names and globs of a pattern that widen it."""
    return [part for part in _parts(pattern) if not _is_filter(part) and not part.startswith("!")]


def matching(
    hosts: Sequence[Host], pattern: str, traits: Mapping[str, Traits] | None = None
) -> list[Host]:
    """The hosts that `pattern` means, in the inventory's order.

    Parts stand between commas. Names and globs widen: `a,b*` is a and every b. Filters (`gpu=l4`,
    `state=running`) narrow: all of them hold, where those of one key are alternatives. `!` before a
    part takes away what fits it. `all` is everything, and so is a pattern that names nothing.
    `traits` are those of each host, by name.

    Raises `UsageError` for a name that fits no host (a misspelt exclusion would act on the host
    that it was to spare), for a filter with an unknown key or a state that there is not, and for a
    pattern without parts.
    """
    parts = _parts(pattern)
    if not parts:
        raise nobody(hosts, pattern)
    names = [part for part in parts if not _is_filter(part)]
    wanted = [part for part in names if not _excludes(hosts, part)]
    spared = [part.removeprefix("!") for part in names if _excludes(hosts, part)]
    for part in (*wanted, *spared):
        if not part:
            why = "no name and no filter follows it"
            raise UsageError(
                "a '!' alone takes nothing away", where="--limit", why=why, fix="--limit '!NAME'"
            )
        if part != EVERYTHING and not any(_fits(host, part) for host in hosts):
            raise UsageError(
                f"no host fits {part!r}", where=pattern, why=_known(hosts), fix="--limit '*'"
            )
    narrowing, sparing = _asked(parts, takes_away=False), _asked(parts, takes_away=True)
    return [
        host
        for host in hosts
        if (not wanted or any(part == EVERYTHING or _fits(host, part) for part in wanted))
        and not any(part == EVERYTHING or _fits(host, part) for part in spared)
        and all(_has(host, key, values, traits) for key, values in narrowing.items())
        and not any(_has(host, key, values, traits) for key, values in sparing.items())
    ]


def _parts(pattern: str) -> list[str]:
    return [part.strip() for part in pattern.split(",") if part.strip()]


def _is_filter(part: str) -> bool:
    return "=" in part


def _asked(parts: Sequence[str], *, takes_away: bool) -> dict[str, list[str]]:
    """The filters of a pattern: each key with its alternatives."""
    asked: dict[str, list[str]] = {}
    for part in parts:
        found = _FILTER.fullmatch(part)
        if found is None or part.startswith("!") != takes_away:
            continue
        key, value, sign = found["key"], found["value"], "!" if takes_away else ""
        if key not in KEYS[:-1] and not re.fullmatch(r"label\.[^.\s]+", key):
            fix = f"--limit '{sign}{_nearest(key, KEYS)}={value}'"
            raise UsageError(
                f"there is no filter {key!r}",
                where=part,
                why=f"filters are {', '.join(KEYS)}",
                fix=fix,
            )
        if key == "state" and not fnmatch.filter(STATES, value.lower()):
            fix = f"--limit '{sign}state={_nearest(value.lower(), STATES)}'"
            raise UsageError(
                f"there is no state {value!r}",
                where=part,
                why=f"states are {', '.join(STATES[:4])} and so on, in Compute Engine's words, and static",
                fix=fix,
            )
        asked.setdefault(key, []).append(value.lower())
    return asked


def _nearest(word: str, words: Sequence[str]) -> str:
    """The one that was probably meant; the first, where none is alike."""
    return next(iter(difflib.get_close_matches(word, words, n=1)), words[0])


def _has(host: Host, key: str, values: Sequence[str], traits: Mapping[str, Traits] | None) -> bool:
    written = (
        (traits or {})
        .get(host.name, {})
        .get(key, frozenset({host.name.lower()} if key == "name" else ()))
    )
    return any(fnmatch.fnmatchcase(one, value) for one in written for value in values)


def _excludes(hosts: Sequence[Host], part: str) -> bool:
    return part.startswith("!") and all(host.name != part for host in hosts)


def _fits(host: Host, part: str) -> bool:
    return host.name == part or fnmatch.fnmatchcase(host.name, part)


def _known(hosts: Sequence[Host]) -> str:
    return (
        "known hosts: " + ", ".join(host.name for host in hosts)
        if hosts
        else "the inventory is empty"
    )
