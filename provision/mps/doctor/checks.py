"""The list of checks of `mps.doctor`, in order, and their run over the evidence. Pure.

Order and facts: the NVIDIA MPS guide, users' reports, and measurements (docs/facts.md). A check
runs only where every check that it depends on passed; otherwise it reads unknown and names them, so
the first line that is not ok is the one to repair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from provision.mps.doctor import (
    client_checks,
    container_checks,
    daemon_checks,
    directory_checks,
    driver_checks,
    pipeline_checks,
    share_checks,
)
from provision.mps.doctor.evidence import Evidence
from provision.mps.doctor.finding import Finding
from provision.report.checks import Check, Verdict, count

EXIT_HEALTHY, EXIT_WARNINGS, EXIT_BROKEN, EXIT_CANNOT_TELL = range(4)

CheckFunction: TypeAlias = Callable[[Evidence], Finding]


class Spec(NamedTuple):
    """One check: its number and name, the checks that it depends on, and its function."""

    number: int
    id: str
    needs: tuple[str, ...]
    find: CheckFunction


CHECKS: tuple[Spec, ...] = (
    Spec(1, "container", (), container_checks.container),
    Spec(2, "devices", ("container",), container_checks.devices),
    Spec(3, "executable", ("container",), container_checks.executable),
    Spec(4, "driver", ("devices", "executable"), driver_checks.driver),
    Spec(5, "binaries", ("executable",), container_checks.binaries),
    Spec(6, "gpu", ("driver",), driver_checks.gpu),
    Spec(7, "compute-mode", ("driver",), driver_checks.compute_mode),
    Spec(8, "pipe-directory", ("container",), directory_checks.pipe_directory),
    Spec(9, "log-directory", ("container",), directory_checks.log_directory),
    Spec(10, "daemon", ("binaries", "pipe-directory"), daemon_checks.daemon),
    Spec(11, "one-daemon", ("binaries",), daemon_checks.one_daemon),
    Spec(12, "control-log", ("log-directory",), daemon_checks.control_log),
    Spec(13, "server", ("daemon",), daemon_checks.server),
    Spec(14, "limits", ("container",), container_checks.limits),
    Spec(15, "environment", ("container",), client_checks.environment),
    Spec(16, "attachment", ("driver", "server"), client_checks.attachment),
    Spec(17, "clients", ("gpu", "server"), client_checks.clients),
    Spec(18, "share", ("gpu", "server"), share_checks.share),
    Spec(19, "memory", ("gpu",), share_checks.memory),
    Spec(20, "cpus", ("container",), container_checks.cpus),
    Spec(21, "pipeline", (), pipeline_checks.pipeline),
    Spec(22, "kernel-log", (), driver_checks.kernel_log),
)
"""Every check, in the order in which they are printed. `needs` names earlier checks only."""


def diagnose(evidence: Evidence) -> tuple[Check, ...]:
    """The result of every check, in order; unknown where a dependency did not pass."""
    results: dict[str, Check] = {}
    for spec in CHECKS:
        failed = [name for name in spec.needs if _blocks(results[name])]
        if failed:
            what = f"not checked: depends on {' and '.join(failed)}"
            results[spec.id] = Check(spec.id, Verdict.UNKNOWN, what)
        else:
            results[spec.id] = Check(spec.id, *spec.find(evidence))
    return tuple(results.values())


def _blocks(check: Check) -> bool:
    """True where checks that depend on this one cannot run."""
    return check.status in {Verdict.FAIL, Verdict.UNKNOWN}


def exit_code(checks: Sequence[Check]) -> int:
    """0 healthy, 1 warnings, 2 broken, 3 unknown: never healthy where evidence is missing."""
    if count(checks, Verdict.FAIL):
        return EXIT_BROKEN
    if count(checks, Verdict.UNKNOWN):
        return EXIT_CANNOT_TELL
    return EXIT_WARNINGS if count(checks, Verdict.WARN) else EXIT_HEALTHY


def numbered(checks: Sequence[Check]) -> list[Check]:
    """The checks for people: each name behind its number."""
    numbers = {spec.id: spec.number for spec in CHECKS}
    return [replace(check, id=f"{numbers[check.id]:>2} {check.id}") for check in checks]
