"""Restore the GPU's compute mode where `mps.enable` or `dev.up` set it and no daemon came up."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from provision.commands.mps.shared.fetch_status import fetch_status
from provision.commands.shared import convergence, host_access
from provision.commands.shared.targets import Targets
from provision.core.errors import ProvisionError
from provision.core.model import Host, HostReport, Note, Status
from provision.project.project import Project
from provision.recipes.mps import compute_mode

_DAEMON_RESOURCES = frozenset({"mps", "mps-as-chosen"})


def restore_compute_mode_after_failure(
    project: Project, targets: Targets, hosts: Sequence[Host], reports: Sequence[HostReport]
) -> None:
    """Restore the previous compute mode on every host whose MPS daemon did not come up.

    With EXCLUSIVE_PROCESS and no daemon, the first program would have the GPU to itself. A failure
    to restore is reported as a note; the run itself reports why it failed.
    """
    if not project.settings.mps.exclusive or targets.check:
        return
    by_name = {host.name: host for host in hosts}
    for report in reports:
        if _daemon_may_be_down(report):
            _restore_on_host(project, by_name[report.host], report)


def _daemon_may_be_down(report: HostReport) -> bool:
    """True where the run changed the host and the daemon is not verified: failed or interrupted."""
    verified = {Status.OK, Status.CHANGED}
    return report.round_trips > 1 and any(
        outcome.resource in _DAEMON_RESOURCES and outcome.status not in verified
        for outcome in report.outcomes
    )


def _restore_on_host(project: Project, host: Host, report: HostReport) -> None:
    """Restore the mode of one host, unless a server that ran before the failed run needs it."""
    try:
        if "compute-mode" not in report.changed and _server_is_active(project, host):
            return
        restored = _converge_compute_mode(project, host)
        failed, changed = restored.failed, bool(restored.changed)
    except ProvisionError:
        failed, changed = True, False
    if failed:
        retry = f"{project.program_argv0} mps.disable tries it again"
        project.emit(Note(f"the compute mode of the GPU could not be restored: {retry}", host.name))
    elif changed:
        project.emit(Note("the compute mode of the GPU is as it was found", host.name))


def _server_is_active(project: Project, host: Host) -> bool:
    """True where an MPS server of the host is ACTIVE. Connects to the host."""
    with contextlib.closing(host_access.connect(project, host)) as transport:
        return fetch_status(project, host, transport).server_state == "ACTIVE"


def _converge_compute_mode(project: Project, host: Host) -> HostReport:
    """Bring the mode back to what was recorded, without events."""
    quiet = replace(project, emit=lambda event: None)
    mode = compute_mode(project.settings, "", host)
    run = convergence.converge_hosts(quiet, Targets(), [host], lambda target: [mode], "mps.enable")
    return run.reports[0]
