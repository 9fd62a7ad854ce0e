"""What mps.bench refuses before it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.commands.mps.bench import bench
from provision.commands.mps.bench.options import parse_options
from provision.commands.shared import host_access
from provision.commands.shared.targets import Targets
from provision.core.errors import HostError, UsageError
from provision.project.project import Project
from provision.settings import Settings
from tests.unit.prepared_host import PreparedHost

FACTS = (
    "mock=\nrunning worker=true\nworkers=worker \ncpus=0-3\npython=yes\ntorch=\n"
    "name=NVIDIA L4\ndriver_version=580.1\ncompute_mode={mode}\n"
)
QUIET = "container=true\npercentage=Cannot find MPS control daemon process\nboxes=worker \n"
BUSY = QUIET + "top|812|other\nholder|812|7|python3|python3 serve.py\n"


def refusal(monkeypatch: pytest.MonkeyPatch, folder: Path, *answers: str, **mps: Any) -> HostError:
    host = PreparedHost(*answers)
    monkeypatch.setattr(host_access, "resolve_host", lambda project, targets: host.host)
    monkeypatch.setattr(host_access, "connect", lambda project, target: host)
    project = Project(Settings.model_validate({"mps": mps}), folder, folder)
    with pytest.raises(HostError) as caught:
        bench.mps_bench(project, Targets(), parse_options(with_chart=False))
    assert not host.answers
    return caught.value


def test_bench_refuses_gpu_in_use_and_lists_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """nvidia-smi in a container shows nothing of them."""
    found = refusal(monkeypatch, tmp_path, FACTS.format(mode="Default"), BUSY)
    assert (found.what, found.why) == (
        "other programs use the GPU: the figures would include their load",
        "other 7 python3 serve.py",
    )


@pytest.mark.parametrize(
    ("set_here", "fix"),
    [(True, "invoke mps.disable"), (False, "sudo nvidia-smi -c DEFAULT   (on the host)")],
)
def test_bench_refuses_exclusive_compute_mode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, set_here: bool, fix: str
) -> None:
    found = refusal(
        monkeypatch, tmp_path, FACTS.format(mode="Exclusive_Process"), exclusive=set_here
    )
    assert (found.why, found.fix) == ("the compute mode is Exclusive_Process", fix)


@pytest.mark.parametrize("command", ["python 'train.py", "", "  "])
def test_empty_or_unquoted_command_is_refused(command: str) -> None:
    with pytest.raises(UsageError, match="this is not a command"):
        parse_options(command=command)


@pytest.mark.parametrize(
    ("running", "what"),
    [("", "the worker container"), ("running worker=true\n", "the container worker-mps")],
)
def test_bench_refuses_stopped_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, running: str, what: str
) -> None:
    found = refusal(
        monkeypatch, tmp_path, f"mock=\nworkers=worker \n{running}", topology="containers"
    )
    assert (found.what, found.fix) == (f"{what} is not running", "invoke dev.up")


def test_steps_flag_is_refused_for_command_without_steps() -> None:
    with pytest.raises(UsageError, match="--steps has no effect on this command"):
        parse_options(command="python train.py", steps="500")
    assert parse_options(command="python train.py {steps}", steps="500").steps == 500


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "\u0663", "9" * 5000, "99999999"])
@pytest.mark.parametrize("flag", ["rounds", "steps"])
def test_invalid_number_is_refused_with_flag_name(flag: str, text: str) -> None:
    flags: dict[str, Any] = {flag: text}
    with pytest.raises(UsageError, match="is not a valid number") as caught:
        parse_options(**flags)
    assert caught.value.where == f"--{flag}"
    assert len(caught.value.what) < 80
