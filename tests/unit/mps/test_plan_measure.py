"""mps.plan --measure from end to end, on a host that gives prepared answers."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from provision.commands.mps.plan import mps_plan
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import HostError
from provision.core.model import Event, Note
from provision.project.project import Project
from provision.settings import Settings
from tests.unit.prepared_host import PreparedHost

FACTS = (
    "running=true\nmock=\nvcpus=16\nshm_mib=1024\nsms=132\n"
    "gpu=0, GPU-1, NVIDIA H200, 580.159.04, 143771, 500, 142800, 9.0, Default, Disabled, 0, "
    "Enabled, 00000000:00:00.0\n"
)
QUIET = "container=true\npercentage=Cannot find MPS control daemon process\nboxes=worker \n"
BUSY = QUIET + "top|812|other\nholder|812|7|python3|python3 serve.py\n"
RUN = (Path(__file__).parents[2] / "data" / "mps" / "measure" / "hopper.txt").read_text(
    encoding="utf-8"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=30)
    (tmp_path / "train.py").write_text("print('new')\n")
    return tmp_path


def measured(
    patch: pytest.MonkeyPatch, folder: Path, host: PreparedHost, events: list[Event] | None = None
) -> TaskResult:
    patch.setattr(host_access, "resolve_host", lambda project, targets: host.host)
    patch.setattr(host_access, "connect", lambda project, target: host)
    project = Project(
        Settings(), folder, folder, emit=(events if events is not None else []).append
    )
    return mps_plan(project, Targets(), clients=None, peak_memory=None, measure="python train.py")


def test_measure_refuses_gpu_in_use(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    """What they hold and do would be taken for what one process needs."""
    host = PreparedHost(FACTS, BUSY)
    with pytest.raises(HostError) as caught:
        measured(monkeypatch, project, host)
    assert (caught.value.what, caught.value.why) == (
        "other programs use the GPU: the figures would include their load",
        "other 7 python3 serve.py",
    )
    assert (host.answers, host.sent) == ([], b""), "no file was sent and no program was run"


def test_measure_sends_project_before_the_run(
    monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    host = PreparedHost(FACTS, QUIET, RUN, QUIET)
    done = measured(monkeypatch, project, host)
    assert (host.answers, host.answers_left_at_send) == ([], 2), (
        "the project was sent before the run"
    )
    with tarfile.open(fileobj=io.BytesIO(host.sent)) as tar:
        assert [name for name in tar.getnames() if name.endswith("/train.py")]
    assert done.document["measured"]["peak_memory_mib"] == 1210
    assert done.document["measured"]["disturbed"] == ""
    assert "others use the GPU" not in done.text


def test_gpu_users_after_the_run_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    done = measured(monkeypatch, project, PreparedHost(FACTS, QUIET, RUN, BUSY))
    assert done.document["measured"]["disturbed"] == "other 7 python3 serve.py"
    text = " ".join(done.text.split())
    assert (
        "warn other processes use the GPU after the run, so the figures may include them: "
        "other 7 python3 serve.py" in text
    )
    assert 80 < max(map(len, done.text.splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "80")
    narrow = measured(monkeypatch, project, PreparedHost(FACTS, QUIET, RUN, BUSY))
    assert max(map(len, narrow.text.splitlines())) <= 80
    assert " ".join(narrow.text.split()) == text
    warned = [each["text"] for each in done.document["plan"]["advice"] if each["level"] == "warn"]
    assert any("other 7 python3 serve.py" in text for text in warned)


def test_failed_status_query_keeps_the_measurement(
    monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    events: list[Event] = []
    done = measured(monkeypatch, project, PreparedHost(FACTS, QUIET, RUN, 1), events)
    assert done.document["measured"]["peak_memory_mib"] == 1210
    assert done.document["measured"]["disturbed"] is None
    assert [
        event.text
        for event in events
        if isinstance(event, Note) and "users of the GPU could not be listed" in event.text
    ]
