"""Checks of this machine: state folder, key pair, programs, unfinished VMs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from provision.hosts.ssh.iap import PROGRAM as GCLOUD
from provision.project.owned_vms import unfinished_vm_lines
from provision.project.project import Project
from provision.report.checks import Check, Verdict


def state_checks(project: Project) -> list[Check]:
    """Return a failed check where the state folder cannot be written, or created.

    Writes nothing to find out.
    """
    folder = _existing_parent(project.home)
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return []
    why = f"{folder} is {'not yours to write to' if folder.is_dir() else 'not a folder'}"
    what = f"state cannot be kept in {project.state_dir}"
    return [Check("state", Verdict.FAIL, what, why, "XDG_STATE_HOME=FOLDER keeps it elsewhere")]


def _existing_parent(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder))


def key_checks(project: Project) -> list[Check]:
    """Return the check whether the private key is readable by this user alone."""
    path = project.key_path
    if not path.exists():
        return [Check("key", Verdict.OK, "the first VM creates the project's key pair")]
    mode = path.stat().st_mode
    if mode & 0o077:
        what = f"others may read the private key {path}"
        why = f"its mode is {mode & 0o777:o}"
        return [Check("key", Verdict.WARN, what, why, f"chmod 600 {path}")]
    return [Check("key", Verdict.OK, "the project's key pair exists, readable by you alone")]


def tool_checks(project: Project) -> list[Check]:
    """Return the checks whether the programs that tasks call on this machine are installed."""
    missing = [name for name in ("ssh", "git") if not _is_installed(project, name)]
    if not missing:
        tools = Check("tools", Verdict.OK, "ssh and git are installed")
    else:
        why = (
            "ssh: terminals of vm.ssh and dev.shell have less of what OpenSSH does; "
            "git: says which files dev.run sends"
        )
        what = f"not installed here: {', '.join(missing)}"
        tools = Check("tools", Verdict.WARN, what, why, "install them")
    if project.settings.ssh == "iap" and project.settings.cloud == "gce":
        return [_gcloud_check(project), tools]
    return [tools]


def _gcloud_check(project: Project) -> Check:
    if _is_installed(project, GCLOUD):
        what = "gcloud is installed; that it is logged in is seen when a tunnel opens"
        return Check("gcloud", Verdict.OK, what)
    return Check(
        "gcloud",
        Verdict.FAIL,
        "the program gcloud is not installed",
        "provision.ssh: iap opens tunnels with it",
        "install the Google Cloud CLI (docs.cloud.google.com/sdk/docs/install), "
        "or set provision.ssh: direct",
    )


def _is_installed(project: Project, name: str) -> bool:
    return shutil.which(name, path=project.environ.get("PATH")) is not None


def unfinished_vm_checks(project: Project) -> list[Check]:
    """Return the check whether the journal has VMs that an earlier run did not finish."""
    lines = unfinished_vm_lines(project)
    if not lines:
        return [Check("left-behind", Verdict.OK, "no earlier run left anything in doubt")]
    what = "an earlier run may have left something that bills"
    fix = f"{project.program_argv0} vm.gc"
    return [Check("left-behind", Verdict.WARN, what, "\n".join(lines), fix)]
