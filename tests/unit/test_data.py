"""The cases of tests/data: reading, desired state, difference, scripts, and a second run."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from provision.core.errors import ProvisionError
from provision.core.exchange import exchange
from provision.core.job import Section, section_text
from provision.core.resource import Resource, compare
from provision.core.shell import Script, script
from provision.hosts.local import LocalTransport
from tests.shells.shells import Scratch, Shell
from tests.unit.cases import Case, cases
from tests.unit.shelltexts import shellchecked, unparsed

KNOWN_KEYS = {
    "about",
    "ensure",
    "ensure_has",
    "settings",
    "facts",
    "desired",
    "desired_keys",
    "reading",
    "failure",
    "run",
}
EXCLUDED = (
    "SC2089",  # data may hold quotes; that they are literal is the point
    "SC2090",  # likewise
    "SC2086",  # a file that splits a list of names on purpose has a directive, which is not sent
)
"""Rules that every script of a resource would violate."""
SHELLCHECK_HEAD = "R=${PROVISION_MOCK_ROOT-}\nexport R because\n"


def case_name(case: Case) -> str:
    return case.name


def is_run(case: Case) -> bool:
    return "run" in case.table


each_case = pytest.mark.parametrize("case", cases(), ids=case_name)
each_run = pytest.mark.parametrize(
    "case", [case for case in cases() if is_run(case)], ids=case_name
)


def scripts(case: Case) -> Iterator[tuple[str, Script]]:
    """The scripts of a case by name, and those that such a script hands to another shell."""
    for name, body in (
        ("probe", case.resource.probe()),
        ("ensure", case.resource.ensure(case.facts)),
    ):
        if body is not None:
            yield f"{case.name}/{name}", body
            yield from (
                (f"{case.name}/{name}-body", script(str(value)))
                for key, value in body.bindings
                if key in {"open", "body", "prove", "note", "clean", "holders"}
            )


def read_error(resource: Resource, output: str) -> str:
    """The error with which a resource refuses the output of a probe."""
    try:
        state = resource.read(output)
    except (ProvisionError, ValueError, LookupError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    pytest.fail(f"this was read as {state}")


@each_case
def test_case_has_known_keys_and_a_purpose(case: Case) -> None:
    assert set(case.table) <= KNOWN_KEYS
    assert case.table["about"]
    assert {"reading", "failure", "run"} & set(case.table)


@each_case
def test_desired_state_is_that_of_the_case(case: Case) -> None:
    desired = case.resource.desired(case.facts)
    if "desired_keys" in case.table:
        assert list(desired or {}) == case.table["desired_keys"]
    else:
        assert desired == case.desired


@each_case
def test_output_is_read_and_compared(case: Case) -> None:
    for reading in case.list("reading"):
        if "unreadable" in reading:
            assert re.search(reading["unreadable"], read_error(case.resource, reading["output"]))
            continue
        state = case.resource.read(reading["output"])
        assert state == reading["state"]
        assert [change.key for change in compare(state, case.desired)] == reading.get("differs", [])


@each_case
def test_ensure_script_holds_what_the_case_says(case: Case) -> None:
    ensure = case.resource.ensure(case.facts)
    assert (ensure is not None) is case.table.get("ensure", True)
    for text in case.table.get("ensure_has", []):
        assert ensure is not None
        assert text in ensure.render()


@each_case
def test_failure_output_is_diagnosed(case: Case) -> None:
    for failure in case.list("failure"):
        found = case.resource.diagnose(failure["output"], failure.get("actual"))
        if "cause" not in failure:
            assert found is None
            continue
        assert found is not None
        assert re.search(failure["cause"], found.cause)
        assert re.search(failure["fix"], found.fix)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every distinct script of every case, as the file that a section's shell reads."""
    folder = tmp_path_factory.mktemp("scripts")
    texts: dict[str, str] = {}
    for case in cases():
        for name, body in scripts(case):
            section = Section(name, body, 1.0, strict=name.endswith("ensure"))
            texts.setdefault(SHELLCHECK_HEAD + section_text(section), name)
    files = []
    for text, name in texts.items():
        file = folder / f"{name.replace('/', '.')}.sh"
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        files.append(str(file))
    return files


def test_every_shell_parses_every_script(shell: Shell, written: list[str]) -> None:
    assert unparsed(shell, written) == ""


@pytest.mark.lint
def test_shellcheck_finds_nothing(written: list[str]) -> None:
    assert shellchecked(written, *EXCLUDED) == ""


def sections_of_two_runs(case: Case) -> list[Section]:
    """Prepare the host, probe it, then do twice what a run does."""
    resource, table = case.resource, case.table["run"]
    ensure = resource.ensure(case.facts) or script(":")
    sections = [
        Section("before", script(table.get("before", ":")), 20.0, merge=True, strict=True),
        Section("p0", resource.probe(), 20.0),
    ]
    for turn in "12":
        sections.append(
            Section(
                f"e{turn}", ensure.with_bindings({"because": ""}), 20.0, merge=True, strict=True
            )
        )
        sections.append(Section(f"p{turn}", resource.probe(), 20.0))
    return [
        *sections,
        Section("after", script(table.get("after", ":")), 20.0, merge=True, strict=True),
    ]


@each_run
def test_second_run_changes_nothing(
    case: Case, scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scratch.shell.name == case.table["run"].get("not_in"):
        pytest.skip("see the case")
    scratch.enter(monkeypatch)
    reply = exchange(
        LocalTransport(scratch.shell.host()), sections_of_two_runs(case), clock=time.monotonic
    )
    assert reply.error is None
    found = reply.results
    assert [(key, found[key].output) for key in ("before", "after") if found[key].status != 0] == []
    assert [found[key].status for key in ("p0", "p1", "p2")] == [0, 0, 0], reply.stderr
    differs = {
        key: [change.key for change in compare(case.resource.read(found[key].output), case.desired)]
        for key in ("p0", "p1", "p2")
    }
    if (fails := case.table["run"].get("fails")) is not None:
        assert [
            bool(found[key].status != 0 and re.search(fails, found[key].output))
            for key in ("e1", "e2")
        ] == [True, True]
        left = case.table["run"].get("leaves", case.table["run"]["differs"])
        assert differs == {"p0": case.table["run"]["differs"], "p1": left, "p2": left}
        return
    assert [(key, found[key].output) for key in ("e1", "e2") if found[key].status != 0] == []
    assert differs == {"p0": case.table["run"]["differs"], "p1": [], "p2": []}
