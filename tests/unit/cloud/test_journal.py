"""The journal is on disk before a request is sent, and readable after any crash."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.cloud.lifecycle.journal import DELETING, GONE, INTENT, LEFT_BEHIND, MADE, Journal
from provision.core.model import VmSpec
from tests.specs import T4, vm_spec

NOW = datetime(2026, 11, 6, 10, 11, 12, tzinfo=UTC)


def spec(name: str = "dev") -> VmSpec:
    return vm_spec(**T4, name=name, ttl_s=3600, metadata={"user-data": "a secret token"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a" / "b" / "journal.jsonl"


@pytest.fixture
def journal(path: Path) -> Journal:
    return Journal(path, "demo", now=lambda: NOW)


def states(journal: Journal) -> list[tuple[str, str]]:
    return [(entry.request_id, entry.state) for entry in journal.entries()]


def test_new_journal_has_no_entries(journal: Journal) -> None:
    assert journal.entries() == []


def test_entry_is_open_from_intent_until_gone(journal: Journal) -> None:
    journal.intent(spec(), "z", "r1")
    assert states(journal) == [("r1", INTENT)]
    journal.mark("r1", MADE)
    assert [(entry.state, entry.name, entry.zone, entry.at) for entry in journal.open()] == [
        (MADE, "dev", "z", "2026-11-06T10:11:12+00:00")
    ]
    assert journal.open()[0].asked["labels"] == {"provision-owner": "me"}


@pytest.mark.parametrize(
    "line",
    [
        '{"state": "intent"}',
        (
            '{"state": "intent", "request_id": ["r2"], "project": "demo", "name": "x", '
            '"zone": "z", "at": "", "asked": {}}'
        ),
        (
            '{"state": "intent", "request_id": "r2", "project": "demo", "name": "x", '
            '"zone": "z", "at": ""}'
        ),
        (
            '{"state": "intent", "request_id": "r2", "project": "demo", "name": null, '
            '"zone": "z", "at": "", "asked": {}}'
        ),
        '{"request_id": "r1"}',
        '{"state": "made", "request_id": {}}',
    ],
)
def test_invalid_line_is_skipped_with_a_warning(path: Path, line: str) -> None:
    output: list[str] = []
    journal = Journal(path, "demo", now=lambda: NOW, warn=output.append)
    journal.intent(spec(), "z", "r1")
    with path.open("a") as file:
        file.write(f"{line}\n")
    journal.mark("r1", MADE)
    assert states(journal) == [("r1", MADE)]
    assert output == [
        (
            f"{path}, line 2: an invalid entry of the journal, ignored; "
            "its VM may exist and bill: `gcloud compute instances list`"
        )
    ]
    journal.mark("r1", GONE)
    assert journal.open() == []
    assert states(journal) == [("r1", GONE)]


def test_mark_name_changes_open_entries_of_that_name_and_zone_only(journal: Journal) -> None:
    for request_id, name, zone in (
        ("r1", "dev", "z"),
        ("r2", "dev", "y"),
        ("r3", "two", "z"),
        ("r4", "dev", "z"),
    ):
        journal.intent(spec(name), zone, request_id)
    journal.mark("r1", GONE)
    journal.mark_name("dev", "z", DELETING)
    assert states(journal) == [("r1", GONE), ("r2", INTENT), ("r3", INTENT), ("r4", DELETING)]


def test_mark_records_a_note(journal: Journal) -> None:
    journal.intent(spec(), "z", "r1")
    journal.mark("r1", LEFT_BEHIND, "why\nit failed")
    assert journal.open()[0].note == "why\nit failed"


def test_entries_of_other_projects_are_left_out(journal: Journal, path: Path) -> None:
    journal.intent(spec(), "z", "r1")
    assert Journal(path, "other").entries() == []


def test_journal_has_no_metadata_and_mode_0600(journal: Journal, path: Path) -> None:
    journal.intent(spec(), "z", "r1")
    assert "secret" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_intent_is_synced_to_disk(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    journal.intent(spec(), "z", "r1")
    assert synced == [path.name, path.parent.name]
    journal.mark("r1", MADE)
    assert synced[2:] == [path.name]


@given(cut=st.integers(0, 10_000))
def test_journal_truncated_at_any_byte_stays_readable_and_writable(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    journal = Journal(path, "demo", now=lambda: NOW)
    journal.intent(spec("ünï"), "z", "r1")
    first = path.stat().st_size
    journal.intent(spec("two"), "z", "r2")
    size = path.stat().st_size
    os.truncate(path, min(cut % (size + 1), size))
    left = [
        request_id
        for request_id, end in (("r1", first), ("r2", size))
        if path.stat().st_size >= end - 1
    ]
    assert [entry.request_id for entry in journal.entries()] == left
    journal.intent(spec("three"), "z", "r3")
    assert [entry.request_id for entry in journal.entries()] == [*left, "r3"]


def test_lines_of_a_later_version_are_skipped(journal: Journal, path: Path) -> None:
    journal.intent(spec(), "z", "r1")
    with path.open("a") as file:
        file.write(
            '[1, 2]\n{"state": "gone", "request_id": "unknown"}\nnot json\n' + "[" * 100_000 + "\n"
        )
    journal.mark("r1", MADE)
    assert states(journal) == [("r1", MADE)]
