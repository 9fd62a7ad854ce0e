"""The checks of `mps.doctor`: in order, each with what it rests on. Pure.

Order and facts: the NVIDIA MPS guide, users' reports, and what was measured (docs/facts.md). A
check is judged only where everything it rests on is in order; otherwise it reads unknown and names
what stands in the way, so that the first line that is not ok is the one to mend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from provision.mps.doctor import host_checks as place
from provision.mps.doctor import job_checks as job
from provision.mps.doctor import mps_checks as mps
from provision.mps.doctor.evidence import Found
from provision.mps.doctor.verdict import Judged
from provision.report.checks import Check, Verdict, count

EXIT_HEALTHY, EXIT_WARNINGS, EXIT_BROKEN, EXIT_CANNOT_TELL = range(4)


Judge: TypeAlias = Callable[[Found], Judged]


class Spec(NamedTuple):
    """One check: its number and name, the checks it rests on, and who judges it."""

    number: int
    id: str
    needs: tuple[str, ...]
    judge: Judge


CHECKS: tuple[Spec, ...] = (
    Spec(1, "container", (), place.container),
    Spec(2, "devices", ("container",), place.devices),
    Spec(3, "executable", ("container",), place.executable),
    Spec(4, "driver", ("devices", "executable"), place.driver),
    Spec(5, "binaries", ("executable",), place.binaries),
    Spec(6, "gpu", ("driver",), place.gpu),
    Spec(7, "compute-mode", ("driver",), place.compute_mode),
    Spec(8, "pipe-directory", ("container",), place.pipe_directory),
    Spec(9, "log-directory", ("container",), place.log_directory),
    Spec(10, "daemon", ("binaries", "pipe-directory"), mps.daemon),
    Spec(11, "one-daemon", ("binaries",), mps.one_daemon),
    Spec(12, "control-log", ("log-directory",), mps.control_log),
    Spec(13, "server", ("daemon",), mps.server),
    Spec(14, "limits", ("container",), place.limits),
    Spec(15, "environment", ("container",), mps.environment),
    Spec(16, "attachment", ("driver", "server"), mps.attachment),
    Spec(17, "clients", ("gpu", "server"), mps.clients),
    Spec(18, "share", ("gpu", "server"), mps.share),
    Spec(19, "memory", ("gpu",), mps.memory),
    Spec(20, "cpus", ("container",), place.cpus),
    Spec(21, "pipeline", (), job.pipeline),
    Spec(22, "kernel-log", (), place.kernel_log),
)
"""Every check, in the order in which they are told. `needs` names earlier ones alone."""


def diagnose(found: Found) -> tuple[Check, ...]:
    """Every check, in order. One that rests on what failed, or could not be told, reads unknown."""
    done: dict[str, Check] = {}
    for spec in CHECKS:
        missing = [
            name for name in spec.needs if done[name].status in {Verdict.FAIL, Verdict.UNKNOWN}
        ]
        if missing:
            what = f"not looked at: it rests on {' and '.join(missing)}"
            done[spec.id] = Check(spec.id, Verdict.UNKNOWN, what)
        else:
            judged = spec.judge(found)
            done[spec.id] = Check(spec.id, judged.status, judged.what, judged.why, judged.fix)
    return tuple(done.values())


def exit_code(checks: Sequence[Check]) -> int:
    """0 healthy, 1 warnings, 2 broken, 3 cannot tell: never healthy where something could not be looked at."""
    if count(checks, Verdict.FAIL):
        return EXIT_BROKEN
    if count(checks, Verdict.UNKNOWN):
        return EXIT_CANNOT_TELL
    return EXIT_WARNINGS if count(checks, Verdict.WARN) else EXIT_HEALTHY


def numbered(checks: Sequence[Check]) -> list[Check]:
    """The checks as people see them, each with its number."""
    numbers = {spec.id: spec.number for spec in CHECKS}
    return [replace(check, id=f"{numbers[check.id]:>2} {check.id}") for check in checks]
