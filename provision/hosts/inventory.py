"""Which of the hosts a pattern means. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from provision.errors import UsageError
from provision.model import Host

EVERYTHING = "all"


def select(hosts: Sequence[Host], pattern: str) -> list[Host]:
    """The hosts that `pattern` means, in the inventory's order: names or globs with commas between, `!` takes away.

    `all` is everything, and so is a pattern that only takes away. Raises `UsageError` when a part fits no host (a
    misspelt exclusion would act on the host that it was to spare) or when none is left.
    """
    parts = [part.strip() for part in pattern.split(",") if part.strip()]
    wanted = [part for part in parts if not _excludes(hosts, part)]
    spared = [part.removeprefix("!") for part in parts if _excludes(hosts, part)]
    for part in (*wanted, *spared):
        if part != EVERYTHING and not any(_fits(host, part) for host in hosts):
            raise UsageError(f"no host fits {part!r}", where=pattern, why=_known(hosts), fix="--limit '*'")
    chosen = [host for host in hosts if not wanted or any(part == EVERYTHING or _fits(host, part) for part in wanted)]
    left = [host for host in chosen if not any(part == EVERYTHING or _fits(host, part) for part in spared)]
    if not parts or not left:
        raise UsageError("the pattern leaves no host", where=repr(pattern), why=_known(hosts), fix="--limit '*'")
    return left


def _excludes(hosts: Sequence[Host], part: str) -> bool:
    return part.startswith("!") and all(host.name != part for host in hosts)


def _fits(host: Host, part: str) -> bool:
    return host.name == part or fnmatch.fnmatchcase(host.name, part)


def _known(hosts: Sequence[Host]) -> str:
    return "known hosts: " + ", ".join(host.name for host in hosts) if hosts else "the inventory is empty"
