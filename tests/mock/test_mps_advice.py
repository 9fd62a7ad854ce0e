"""mps.plan and mps.explain on the mock."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from provision.commands.mps.explain import mps_explain
from provision.commands.mps.plan import mps_plan
from provision.commands.shared.targets import Targets
from provision.core.errors import HostError, UsageError
from provision.project.project import Project
from provision.settings import Settings
from provision.testing import MockHost
from tests.mock.workers import running_worker

pytestmark = pytest.mark.slow

HERE = Targets()


def test_plan_uses_host_facts_in_one_exchange(tmp_path: Path) -> None:
    with MockHost(gpu="nvidia-l4") as mock, running_worker(mock, tmp_path) as project:
        mock.stats.reset()
        done = mps_plan(project, HERE, clients=None, peak_memory="2g", measure=None)
        assert mock.stats.exchanges == 1
        document = json.loads(json.dumps(done.document))
        assert document["host"]["gpu"] == "NVIDIA L4"
        assert (document["host"]["sm_count"], document["host"]["sm_source"]) == (58, "driver")
        assert document["workload"]["peak_memory_mib"] == 2048
        assert document["host"]["vcpus"] == 8, (
            "nproc would print OMP_NUM_THREADS, which the container has"
        )
        assert document["plan"]["clients"] == min(8, document["host"]["vcpus"])
        assert document["measured"] is None
        assert "as Dataflow does" in done.text
        assert "usually" not in done.text, (
            "nothing is known about the program, so nothing is predicted"
        )
        assert max(map(len, done.text.splitlines())) <= 100
        text = mps_plan(
            replace(project, program_argv0="provision"),
            HERE,
            clients=None,
            peak_memory=None,
            measure=None,
        ).text
        assert "then provision mps.enable" in text
        assert "invoke" not in text


def test_plan_reduces_requested_clients_to_the_limit(tmp_path: Path) -> None:
    with MockHost() as mock, running_worker(mock, tmp_path) as project:
        done = mps_plan(project, HERE, clients="60", peak_memory=None, measure=None)
        assert done.document["plan"]["clients"] == 46
        assert "60 clients were asked for, 46 are possible" in " ".join(done.text.split())


def test_measure_is_refused_on_a_mock(tmp_path: Path) -> None:
    """Nor does one that is reached like any other SSH host."""
    with (
        MockHost() as mock,
        running_worker(mock, tmp_path) as project,
        pytest.raises(UsageError, match="needs a GPU"),
    ):
        mps_plan(project, HERE, clients=None, peak_memory=None, measure="true")


def test_plan_without_container_suggests_dev_up(tmp_path: Path) -> None:
    with (
        MockHost() as mock,
        running_worker(mock, tmp_path, container=False) as project,
        pytest.raises(HostError, match="not running") as caught,
    ):
        mps_plan(project, HERE, clients=None, peak_memory=None, measure=None)
    assert "dev.up" in caught.value.fix


@pytest.mark.parametrize(
    ("flags", "where", "allowed"),
    [
        *(({"clients": text}, "--clients", "from 1 to 99999") for text in ("0", "x", "100000")),
        *(
            ({"peak_memory": text}, "--peak-memory", "900m, 2g or 1.5g")
            for text in ("much", "0", "0.1m", "0g")
        ),
    ],
)
def test_plan_refuses_invalid_flags_before_connecting(
    tmp_path: Path, flags: dict[str, str], where: str, allowed: str
) -> None:
    project = Project(Settings(), tmp_path, tmp_path)
    with pytest.raises(UsageError) as caught:
        mps_plan(project, HERE, **{"clients": None, "peak_memory": None, "measure": None, **flags})
    assert (caught.value.where, allowed in caught.value.why) == (where, True)


def test_explain_reads_text_file_and_stdin_without_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(Settings(), tmp_path, tmp_path)
    done = mps_explain(project, text="Error 805\n", file=None)
    assert (done.exit_code, done.document["matches"][0]["id"]) == (0, "805")
    log = tmp_path / "control.log"
    log.write_text("[x] User did not send valid credentials\n")
    assert mps_explain(project, text=None, file=str(log)).document["matches"][0]["harmless"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"torch.mps \xff\n")))
    assert mps_explain(project, text=None, file="-").document["matches"][0]["id"] == "apple"
    unknown = mps_explain(project, text="all is well", file=None)
    assert (unknown.exit_code, unknown.document, "mps.doctor" in unknown.text) == (
        1,
        {"matches": []},
        True,
    )
    for given in (
        {"text": None, "file": None},
        {"text": "a", "file": "b"},
        {"text": None, "file": str(tmp_path / "absent")},
    ):
        with pytest.raises(UsageError):
            mps_explain(project, **given)
