"""The checks of mps.doctor: script output -> finding, one case at a time, and their order."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.mps.doctor.checks import (
    CHECKS,
    EXIT_BROKEN,
    EXIT_CANNOT_TELL,
    EXIT_HEALTHY,
    EXIT_WARNINGS,
    diagnose,
    exit_code,
    numbered,
)
from provision.mps.doctor.evidence import Evidence, read_evidence
from provision.mps.status.gpu_users import GpuUser
from provision.mps.status.status import MpsStatus
from provision.report.checks import Check, Verdict, checks_document, checks_lines
from provision.resources import nvidia_smi

DATA = Path(__file__).parents[2] / "data" / "mps" / "doctor"
LOOK = (DATA / "look.txt").read_text(encoding="utf-8")
WORKERS = (DATA / "workers.txt").read_text(encoding="utf-8")
CASES = tomllib.loads((DATA / "cases.toml").read_text(encoding="utf-8"))["case"]
GPU = nvidia_smi.SmiGpu(
    0,
    "GPU-1",
    "NVIDIA H100 80GB HBM3",
    "580.159.04",
    81559,
    804,
    80275,
    (9, 0),
    "Default",
    False,
    6,
    True,
    "0",
)
STATUS = MpsStatus(
    daemon=True,
    answer="100.0",
    server_state="ACTIVE",
    server_uid=0,
    thread_percentage=100.0,
    clients=(GpuUser(609, "python3 train.py"),),
    gpus=(GPU,),
    cuda=(13, 0),
)
ATTACHED = "attached: process 9 sees 132 multiprocessors"


def changed(text: str, lines: Mapping[str, str], rows: list[str], drop: list[str]) -> str:
    kept = [
        line
        for line in text.splitlines()
        if line.partition("=")[0] not in lines and line.partition("|")[0] not in drop
    ]
    return "\n".join([*kept, *(f"{key}={value}" for key, value in lines.items()), *rows]) + "\n"


def plain(value: Any) -> Any:
    match value:
        case "<none>":
            return None
        case [{"pid": _}, *_]:
            return tuple(GpuUser(**fields) for fields in value)
        case list():
            return tuple(value)
        case {"count": int(count)}:
            return tuple(GpuUser(pid, "python3 train.py") for pid in range(100, 100 + count))
        case _:
            return value


def evidence_of(case: Mapping[str, Any]) -> Evidence:
    """The evidence of a healthy host with the changes of the case."""
    looked = changed(LOOK, case.get("look", {}), case.get("rows", []), case.get("drop", []))
    workers = changed(WORKERS, case.get("workers", {}), case.get("worker_rows", []), [])
    gpu = replace(GPU, **{key: plain(value) for key, value in case.get("gpu", {}).items()})
    changes = {key: plain(value) for key, value in case.get("status", {}).items()}
    return replace(
        read_evidence(looked, workers),
        status=replace(STATUS, **{"gpus": (gpu,), **changes}),
        probe=case.get("probe", ATTACHED),
        options=tuple(case.get("options", ())),
        differs=case.get("differs", {}),
        wanted_gpu=case.get("wanted_gpu", ""),
    )


def verdict(checks: tuple[Check, ...], name: str) -> Check:
    return next(check for check in checks if check.id == name)


def test_healthy_host_passes_every_check() -> None:
    checks = diagnose(evidence_of({}))
    assert [check for check in checks if check.status is not Verdict.OK] == []
    assert exit_code(checks) == EXIT_HEALTHY
    assert checks_document(checks)["ok"] is True


@pytest.mark.parametrize(
    "case",
    CASES,
    ids=[f"{number}-{case['check']}-{case['want']}" for number, case in enumerate(CASES)],
)
def test_check_gives_expected_finding(case: Mapping[str, Any]) -> None:
    """Runs the check alone: one that it depends on may have failed for the same reason."""
    spec = next(spec for spec in CHECKS if spec.id == case["check"])
    judged = spec.find(evidence_of(case))
    assert judged.status.value == case["want"], judged
    assert re.search(case.get("says", ""), f"{judged.what}\n{judged.why}\n{judged.fix}"), judged
    if judged.status is Verdict.FAIL or judged.status is Verdict.WARN:
        assert judged.why
        assert judged.fix


def test_every_check_has_a_failing_case() -> None:
    bad = {case["check"] for case in CASES if case["want"] != "ok"}
    assert bad == {spec.id for spec in CHECKS}


def test_checks_are_numbered_and_depend_on_earlier_ones_only() -> None:
    assert [spec.number for spec in CHECKS] == list(range(1, len(CHECKS) + 1))
    seen: set[str] = set()
    for spec in CHECKS:
        assert set(spec.needs) <= seen
        seen.add(spec.id)


def test_check_is_unknown_when_its_dependency_fails() -> None:
    checks = diagnose(evidence_of({"look": {"running": "false"}}))
    assert verdict(checks, "container").status is Verdict.FAIL
    others = {
        check.id: check.status
        for check in checks
        if check.id not in {"container", "pipeline", "kernel-log"}
    }
    assert set(others.values()) == {Verdict.UNKNOWN}
    assert exit_code(checks) == EXIT_BROKEN
    assert "depends on container" in verdict(checks, "devices").what


def test_missing_daemon_fails_only_checks_that_depend_on_it() -> None:
    checks = diagnose(
        evidence_of({"status": {"daemon": False, "answer": "Cannot find"}, "drop": ["process"]})
    )
    assert [check.id for check in checks if check.status is Verdict.FAIL] == ["daemon"]
    assert [check.id for check in checks if check.status is Verdict.UNKNOWN] == [
        "server",
        "attachment",
        "clients",
        "share",
    ]


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ({}, EXIT_HEALTHY),
        ({"look": {"files": "1024"}}, EXIT_WARNINGS),
        ({"look": {"files": "1024"}, "workers": {"kernel": ""}}, EXIT_CANNOT_TELL),
        ({"probe": ""}, EXIT_CANNOT_TELL),
        ({"look": {"server": ""}, "workers": {"kernel": ""}}, EXIT_BROKEN),
    ],
)
def test_exit_code_reflects_worst_check(case: Mapping[str, Any], code: int) -> None:
    checks = diagnose(evidence_of(case))
    assert exit_code(checks) == code
    assert checks_document(checks)["ok"] is (code in {EXIT_HEALTHY, EXIT_WARNINGS})


def test_no_check_but_pipeline_passes_without_evidence() -> None:
    checks = diagnose(Evidence())
    assert exit_code(checks) == EXIT_BROKEN
    assert not any(check.status is Verdict.OK for check in checks if check.id != "pipeline")


LINES = st.lists(
    st.sampled_from([*LOOK.splitlines(), *WORKERS.splitlines()]) | st.text(max_size=40), max_size=40
).map("\n".join)


@given(
    looked=LINES,
    workers=LINES,
    probe=st.sampled_from(["", ATTACHED, "outside", "failed: x"]),
    status=st.sampled_from([MpsStatus(), STATUS]),
)
def test_any_script_output_gives_a_result_for_every_check(
    looked: str, workers: str, probe: str, status: MpsStatus
) -> None:
    checks = diagnose(replace(read_evidence(looked, workers), status=status, probe=probe))
    assert [check.id for check in checks] == [spec.id for spec in CHECKS]
    assert exit_code(checks) in range(4)


def test_lines_fit_100_columns_and_show_reason_and_remedy() -> None:
    checks = numbered(
        diagnose(
            evidence_of(
                {"status": {"daemon": False, "answer": "Cannot find MPS control daemon process"}}
            )
        )
    )
    lines = checks_lines(checks)
    assert max(map(len, lines)) <= 100
    at = next(number for number, line in enumerate(lines) if line.startswith("fail     10 daemon"))
    assert lines[at + 1].strip() == "why: Cannot find MPS control daemon process"
    assert lines[at + 2].strip().startswith("try: invoke mps.enable")
    assert re.fullmatch(rf"{len(CHECKS)} checks: \d+ ok, \d fail, \d unknown", lines[-1])


def test_documentation_lists_every_check() -> None:
    page = (Path(__file__).parents[3] / "docs" / "mps.md").read_text(encoding="utf-8")
    assert [spec.id for spec in CHECKS if f"| {spec.number} | `{spec.id}` |" not in page] == []
