"""Logins to VMs: with the project's key in the instance's metadata, or through OS Login.

A key in an OS Login profile opens every VM of every project that its owner's roles allow, so it
gets an expiry: it is imported for 30 days, again by every task that creates, starts or waits for a
VM, and by every task on such a VM in its last week. `vm.gc` removes it when the project has no VM
left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from provision.cloud.api import oslogin
from provision.cloud.api.protocol import ComputeCloud, Login
from provision.core.errors import CloudError, Unreachable
from provision.core.files import write_atomically
from provision.core.model import Host, Vm
from provision.project.project import Project

USER = "provision"
"""The account that a key in the instance's metadata creates: with sudo and Docker (guest agent's
defaults)."""
IMPORTED_FOR_S = 30 * 86_400
RENEWED_BEFORE_END_S = 7 * 86_400
now = time.time
"""Seconds since the epoch."""


def fetch_os_login_enabled(project: Project, cloud: ComputeCloud) -> bool:
    """Return whether a new VM uses OS Login; for `auto` the project's metadata decides."""
    if project.settings.os_login == "auto":
        return oslogin.is_enabled(cloud.project_metadata())
    return project.settings.os_login == "on"


def request_login_user(project: Project, cloud: ComputeCloud, vm: Vm) -> str:
    """Return the user to log in as, per the metadata that the VM sees.

    With OS Login, import the project's key first, in every call.
    """
    levels = [vm.metadata] if oslogin.METADATA_KEY in vm.metadata else [cloud.project_metadata()]
    return _import_key(project, cloud).user if oslogin.is_enabled(*levels) else USER


def _import_key(project: Project, cloud: ComputeCloud) -> Login:
    public_line = project.ensure_key_pair()
    login = cloud.add_login_key(public_line, int(now()) + IMPORTED_FOR_S)
    write_atomically(_login_file(project), json.dumps(asdict(login)))
    return login


def _login_file(project: Project) -> Path:
    return project.home / "os_login.json"


def recorded_login(project: Project) -> Login | None:
    """Return the last import of the project's key from here; None when there is none any more."""
    try:
        return Login(**json.loads(_login_file(project).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def prepare_login(project: Project, hosts: Collection[Host]) -> None:
    """Make sure that tasks can log in to those of `hosts` that are VMs.

    Creates the key pair and the mock's tunnel program where they are missing, and renews the key in
    the OS Login profile when one of the VMs uses it.
    """
    vms = [host for host in hosts if host.key_alias]
    if not vms:
        return
    project.ensure_key_pair()
    if project.settings.cloud == "mock" and project.settings.ssh == "iap":
        project.mock.install_gcloud()
    if any(host.user != USER for host in vms):
        renew_imported_key(project)


def renew_imported_key(project: Project) -> None:
    """Import the key again when its expiry is near; at most one attempt in a call.

    A failure is printed, and the task goes on.
    """
    login = recorded_login(project)
    if login is not None and login.expires_s - now() > RENEWED_BEFORE_END_S:
        return
    if not project.mark_once("OS Login key renewed"):
        return
    try:
        _import_key(project, project.connect_cloud())
    except CloudError as error:
        expiry = (
            "may have expired"
            if login is None
            else f"expires in {max(0, int(login.expires_s - now())) // 86_400} days"
        )
        project.note_once(
            f"this project's key in your login profile {expiry}, and it was not renewed: "
            f"{error.why or error.what}"
        )


def remove_imported_key(project: Project, cloud: ComputeCloud, login: Login) -> None:
    """Remove the project's key from the login profile. Raises `CloudError` when refused."""
    cloud.remove_login_key(login.key)
    _login_file(project).unlink(missing_ok=True)


def explain_refused_login(project: Project, user: str, error: Unreachable) -> None:
    """Add to `error` that a role is missing, where the VM refuses a key that OS Login knows."""
    if user != USER and error.what.startswith("no key is accepted"):
        error.why += f"\nOS Login is on for this VM: the account needs {oslogin.LOGIN_ROLE}"
        member = f"--member user:YOU --role {oslogin.LOGIN_ROLE}"
        policy = f"gcloud projects add-iam-policy-binding {project.settings.project} {member}"
        error.fix = policy
