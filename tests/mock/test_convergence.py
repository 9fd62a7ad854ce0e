"""`provision.testing.converge`, which a user's own tests are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provision import Directory, File, HostReport, Settings, Status
from provision.core.errors import HostKeyMismatch, RecipeError
from provision.core.model import Event, ResourceFinished
from provision.recipes import host_recipe
from provision.testing import MockHost, converge

RECIPE = (
    Directory(name="folder", path="/var/lib/data", mode="0750"),
    File(name="labels", path="/var/lib/data/it's labels.txt", content="cat\n", needs=("folder",)),
)


def statuses(report: HostReport) -> list[Status]:
    return [outcome.status for outcome in report.outcomes]


def test_check_then_run_then_second_run_changes_nothing(
    mock_cos_host: MockHost,
) -> None:
    predicted = converge(mock_cos_host, RECIPE, check=True)
    assert statuses(predicted) == [Status.CHANGED, Status.UNKNOWN]
    assert not mock_cos_host.path("/var/lib/data").exists()

    events: list[Event] = []
    first = converge(mock_cos_host, RECIPE, emit=events.append)
    assert statuses(first) == [Status.CHANGED, Status.CHANGED]
    assert mock_cos_host.path("/var/lib/data/it's labels.txt").read_text() == "cat\n"
    assert [event.outcome for event in events if isinstance(event, ResourceFinished)] == list(
        first.outcomes
    )

    again = converge(mock_cos_host, RECIPE)
    assert (statuses(again), again.round_trips) == ([Status.OK, Status.OK], 1)


def test_converge_applies_project_recipe(mock_cos_host: MockHost, tmp_path: Path) -> None:
    (tmp_path / "its_recipe.py").write_text(
        "from provision import File\n\n\ndef extra(settings):\n"
        "    return [File(name='mark', path='/var/lib/mark', content=settings.name, "
        "needs=('nvidia-smi',))]\n"
    )
    recipe = host_recipe(Settings(name="mine", recipes=("its_recipe:extra",)), tmp_path)
    report = converge(mock_cos_host, recipe)
    assert not report.failed
    assert report.outcomes[-1].resource == "mark"
    assert mock_cos_host.path("/var/lib/mark").read_text() == "mine"


def test_failed_report_lists_every_error(mock_cos_host: MockHost) -> None:
    report = converge(
        mock_cos_host,
        [RECIPE[0], File(name="in the way", path="/var/lib/data", content="x", needs=("folder",))],
    )
    assert (report.failed, report.changed) == (True, ("folder",))
    lines = str(report).splitlines()
    assert lines[:3] == ["host mock", "folder: changed", "in the way: failed"]
    assert "mock: in the way: a directory is where the file should be" in lines
    assert "  why: the path is a directory, a file is wanted" in lines


def test_bad_recipe_and_wrong_host_key_raise(mock_cos_host: MockHost) -> None:
    with pytest.raises(RecipeError, match="does not come earlier"):
        converge(mock_cos_host, RECIPE[1:])
    stranger = replace(mock_cos_host.host, host_key=None)
    with pytest.raises(HostKeyMismatch, match="unknown"):
        converge(stranger, RECIPE)
