"""Comparison and description of states; the waves of a recipe."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import RecipeError
from provision.core.model import Change, State
from provision.core.resource import compare, describe, waves
from tests.unit.scripted import Item

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, width=16)
    | st.sampled_from(["", "a", "1", "True"])
)
states = st.none() | st.dictionaries(st.sampled_from("abc"), scalars)


@pytest.mark.parametrize(
    ("actual", "desired", "keys"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": 2}, {"a": 1}, []),
        ({"a": 1}, {"a": 2, "b": 1}, ["a", "b"]),
        ({"a": None}, {"a": None}, []),
        ({}, {"a": None}, ["a"]),
        ({"a": 25.0}, {"a": 25}, []),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": False}, {"a": 0}, ["a"]),
        ({"a": "1"}, {"a": 1}, ["a"]),
        ({"a": 1}, {}, []),
        (None, None, []),
        (None, {"a": 1}, ["a"]),
        (None, {}, ["present"]),
        ({"a": 1}, None, ["a"]),
        ({}, None, ["present"]),
    ],
)
def test_compare_lists_the_differing_keys(
    actual: State | None, desired: State | None, keys: list[str]
) -> None:
    assert [change.key for change in compare(actual, desired)] == keys


@given(states, states)
def test_difference_has_actual_and_desired_value(
    actual: State | None, desired: State | None
) -> None:
    changes = compare(actual, desired)
    for change in changes:
        if change.key != "present":
            assert change.actual == (actual or {}).get(change.key)
            assert change.desired == (desired or {}).get(change.key)
            assert (change.key in (actual or {}), change.key in (desired or {})) != (False, False)
    assert (changes == ()) is not bool(changes)
    assert compare(actual, actual) == ()


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (Change("mode", "0600", "0644"), ["mode: 0600 -> 0644"]),
        (Change("running", actual=False, desired=True), ["running: no -> yes"]),
        (Change("id", None, "x"), ["id: absent -> x"]),
        (Change("id", "x", None), ["id: x -> absent"]),
        (Change("content", "", "x"), ['content: "" -> x']),
        (Change("layers", 3, 1), ["layers: 3 -> 1"]),
        (
            Change("content", "a\nb\nc\n", "a\nB\nc\n"),
            [
                "--- content (host)",
                "+++ content (desired)",
                "@@ -1,3 +1,3 @@",
                " a",
                "-b",
                "+B",
                " c",
            ],
        ),
        (
            Change("content", None, "a\n"),
            ["--- content (host)", "+++ content (desired)", "@@ -0,0 +1 @@", "+a"],
        ),
        (
            Change("content", "a\n", None),
            ["--- content (host)", "+++ content (desired)", "@@ -1 +0,0 @@", "-a"],
        ),
        (
            Change("content", "a\n", "a"),
            [
                "--- content (host)",
                "+++ content (desired)",
                "@@ -1 +1,2 @@",
                " a",
                "+\\ No newline at end of file",
            ],
        ),
        (
            Change("content", "a\r\n", "a\n"),
            ["--- content (host)", "+++ content (desired)", "@@ -1 +1 @@", "-a\r", "+a"],
        ),
    ],
)
def test_change_is_described_for_people(change: Change, lines: list[str]) -> None:
    assert describe(change) == lines


def test_key_absent_on_both_sides_is_not_a_change() -> None:
    """`mps.disable --check --diff` would print `memory_limit: absent -> absent` as a change."""
    assert compare({"daemon": True, "memory_limit": None}, None) == (
        Change("daemon", actual=True, desired=None),
    )
    assert compare(None, {"daemon": True, "memory_limit": None}) == (
        Change("daemon", actual=None, desired=True),
    )
    assert compare({"memory_limit": None}, None) == (Change("present", actual=True, desired=False),)
    assert compare(None, {"memory_limit": None}) == (Change("present", actual=False, desired=True),)


texts = st.text(st.sampled_from("ab\n\r\x0c\u2028"), max_size=6)


@given(texts, texts)
def test_differing_texts_are_described_as_diff(before: str, after: str) -> None:
    changed = [
        line
        for line in describe(Change("content", before, after))
        if not line.startswith(("---", "+++"))
    ]
    assert any(line[:1] in "-+" or "->" in line for line in changed) or before == after


def names(recipe: list[Item]) -> list[list[str]]:
    return [[resource.name for resource in wave] for wave in waves(recipe)]


def test_waves_split_at_dependencies() -> None:
    recipe = [
        Item(name="a"),
        Item(name="b"),
        Item(name="c", needs=("a",)),
        Item(name="d", needs=("b",)),
        Item(name="e", needs=("d",)),
    ]
    assert names(recipe) == [["a", "b"], ["c", "d"], ["e"]]
    assert names([]) == []
    assert names([Item(name="a"), Item(name="b", on_change_of=("a",))]) == [["a"], ["b"]]


@given(st.lists(st.lists(st.integers(0, 7), max_size=2), max_size=8))
def test_dependency_is_in_an_earlier_wave(links: list[list[int]]) -> None:
    recipe = [
        Item(name=str(number), needs=tuple({str(link) for link in found if link < number}))
        for number, found in enumerate(links)
    ]
    cut = waves(recipe)
    assert [resource for wave in cut for resource in wave] == recipe
    place = {resource.name: number for number, wave in enumerate(cut) for resource in wave}
    for resource in recipe:
        assert all(place[need] < place[resource.name] for need in resource.needs)


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ([Item(name="a"), Item(name="a")], "same name"),
        ([Item(name="a", needs=("b",)), Item(name="b")], "'b'.*before it: none"),
        ([Item(name="x"), Item(name="a", on_change_of=("y",))], "'y'.*before it: x"),
        ([Item(name="a", needs=("a",))], "'a'"),
    ],
)
def test_contradictory_recipe_is_refused(recipe: list[Item], why: str) -> None:
    with pytest.raises(RecipeError) as found:
        waves(recipe)
    assert found.value.where == recipe[-1].name if "same" in why else True
    assert re.search(why, f"{found.value.what} {found.value.why}")
    assert found.value.fix
