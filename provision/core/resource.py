"""What a resource is: one thing on one host, how to read it, its desired state, how to change it.

Pure: a resource makes scripts and reads their output.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from provision.core.errors import RecipeError
from provision.core.model import Change, Facts, Scalar, State
from provision.core.shell import Script


@dataclass(frozen=True)
class Diagnosis:
    """The cause of a failure and one command to try."""

    cause: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Resource(ABC):
    """One thing on one host.

    `name` is unique within a recipe. `needs` names earlier resources that must be as desired before
    this one is changed. `on_change_of` names earlier resources after whose change this one runs
    again even where it is as desired, as a handler does. Both divide the recipe into waves. The
    boot script also runs the `ensure` of an `at_boot` resource.
    """

    name: str
    needs: tuple[str, ...] = ()
    on_change_of: tuple[str, ...] = ()
    at_boot: bool = False
    timeout_s: float = 120.0
    probe_timeout_s: float = 30.0

    @abstractmethod
    def probe(self) -> Script:
        """A read-only script that prints the state and exits 0, also for an absent thing."""

    @abstractmethod
    def read(self, text: str) -> State | None:
        """The state that the probe printed; None when the thing is absent."""

    @abstractmethod
    def desired(self, facts: Facts) -> State | None:
        """The desired state; None when the thing should be absent. Other keys may differ."""

    @abstractmethod
    def ensure(self, facts: Facts) -> Script | None:
        """An idempotent script, run under `set -eu`, that brings about the desired state.

        None when no script on the host can.
        """

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002 - a hook
        """The diagnosis of a failure, from the output of `ensure` and the state read after it."""
        return None

    def remark(self, actual: State | None) -> str:  # noqa: ARG002 - a hook
        """A remark for people on a state that is as desired; empty for none."""
        return ""

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Names of the earlier resources that this one depends on."""
        return (*self.needs, *self.on_change_of)


def compare(actual: State | None, desired: State | None) -> tuple[Change, ...]:
    """The keys whose values differ, in the order of `desired`; none when `actual` is as desired."""
    if desired is None:
        if actual is None:
            return ()
        gone = tuple(Change(key, value, None) for key, value in actual.items() if value is not None)
        return gone or (Change("present", actual=True, desired=False),)
    if actual is None:
        made = tuple(
            Change(key, None, value) for key, value in desired.items() if value is not None
        )
        return made or (Change("present", actual=False, desired=True),)
    return tuple(
        Change(key, actual.get(key), value)
        for key, value in desired.items()
        if key not in actual or not _same(actual[key], value)
    )


def _same(actual: Scalar, desired: Scalar) -> bool:
    return actual == desired and isinstance(actual, bool) is isinstance(desired, bool)


def describe(change: Change) -> list[str]:
    """The change as lines for people: `key: actual -> desired`, or a unified diff of texts."""
    if any(isinstance(side, str) and "\n" in side for side in (change.actual, change.desired)):
        before, after = _lines(change.actual), _lines(change.desired)
        return list(
            difflib.unified_diff(
                before, after, f"{change.key} (host)", f"{change.key} (desired)", lineterm=""
            )
        )
    return [f"{change.key}: {_show(change.actual)} -> {_show(change.desired)}"]


def _lines(value: Scalar) -> list[str]:
    *lines, last = str("" if value is None else value).split("\n")
    return [*lines, last, "\\ No newline at end of file"] if last else lines


def _show(value: Scalar) -> str:
    match value:
        case None:
            return "absent"
        case bool():
            return "yes" if value else "no"
        case "":
            return '""'
        case _:
            return str(value)


def waves(resources: Sequence[Resource]) -> list[list[Resource]]:
    """The recipe in waves, each of which takes one exchange.

    A resource that depends on one of the current wave begins a new one. Raises `RecipeError` for
    two resources of one name and for a dependency that does not come earlier.
    """
    result: list[list[Resource]] = []
    seen: set[str] = set()
    current: set[str] = set()
    for resource in resources:
        _check_resource(resource, seen)
        if not result or current.intersection(resource.dependencies):
            result.append([])
            current = set()
        result[-1].append(resource)
        current.add(resource.name)
        seen.add(resource.name)
    return result


def _check_resource(resource: Resource, seen: set[str]) -> None:
    if resource.name in seen:
        raise RecipeError(
            "two resources of one recipe have the same name",
            where=resource.name,
            fix="rename one of them",
        )
    for name in resource.dependencies:
        if name not in seen:
            known = ", ".join(sorted(seen)) or "none"
            why = f"it depends on {name!r}, which does not come before it (before it: {known})"
            raise RecipeError(
                "a resource depends on one that does not come earlier",
                where=resource.name,
                why=why,
                fix="reorder the recipe",
            )
