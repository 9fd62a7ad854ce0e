"""mps.bench on the mock: no figure is made up."""

from __future__ import annotations

import pytest

from provision import app
from provision.errors import EXIT_USAGE, UsageError
from tests.mock.project import HERE, Project

pytestmark = pytest.mark.timeout(240)


def test_a_mock_is_refused_in_one_line(project: Project) -> None:
    assert project.create().exit_code == 0
    asked = app.mps_asked(clients="1,2", rounds="1")
    with pytest.raises(UsageError) as caught:
        app.mps_bench(project.session, HERE, asked)
    assert caught.value.exit_code == EXIT_USAGE
    assert str(caught.value).splitlines()[0] == "dev: mps.bench measures a GPU: this is a mock, which has none, and no figure is made up"
    assert not (project.folder / "mps-bench").exists()
