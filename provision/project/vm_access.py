"""How tasks log in to VMs: with the project's key in the instance's metadata, or through OS Login.

A key that OS Login knows opens whatever its owner's roles open, in every project, so it has an end:
it is imported for 30 days, and anew by whatever makes, starts or waits for a VM, and by any task on
such a VM in its last week. `vm.gc` takes it away once no VM of the project is left.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

from provision.cloud.api import oslogin
from provision.cloud.api.ports import ComputeCloud, Login
from provision.core.errors import CloudError, Unreachable
from provision.core.model import Vm
from provision.hosts.keys import KeyPair, ensure_key
from provision.project.project import Project
from provision.project.records import replace_whole

USER = "provision"
"""Account that the key in an instance's metadata makes: with sudo and Docker (guest agent's
defaults)."""
LOGIN_LASTS_S = 30 * 86_400
RENEWED_BEFORE_S = 7 * 86_400
_RENEWAL = "the renewal of the key in the login profile was tried"
now = time.time
"""Seconds since the epoch."""


def wants_os_login(project: Project, cloud: ComputeCloud) -> bool:
    """Whether a new VM is to use OS Login; `auto` does what the project's metadata says."""
    if project.settings.os_login == "auto":
        return oslogin.is_on(cloud.project_metadata())
    return project.settings.os_login == "on"


def user_of(project: Project, cloud: ComputeCloud, vm: Vm, key: KeyPair) -> str:
    """Who to log in as, by the metadata that the VM sees; with OS Login the key is imported first, once more if need be."""
    levels = [vm.metadata] if oslogin.KEY in vm.metadata else [cloud.project_metadata()]
    return _imported(project, cloud, key).user if oslogin.is_on(*levels) else USER


def _imported(project: Project, cloud: ComputeCloud, key: KeyPair) -> Login:
    login = cloud.os_login(key.public_line, int(now()) + LOGIN_LASTS_S)
    replace_whole(_record(project), json.dumps(asdict(login)))
    return login


def _record(project: Project) -> Path:
    return project.home / "os_login.json"


def login_of(project: Project) -> Login | None:
    """The project's key in a login profile, as it was imported last from here; None when it never was, or was taken away."""
    try:
        return Login(**json.loads(_record(project).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def renew(project: Project) -> None:
    """Give the imported key more time when its end is near. Tried once in a call; where it fails, that is said and the work goes on."""
    login = login_of(project)
    if (
        login is not None and login.expires_s - now() > RENEWED_BEFORE_S
    ) or _RENEWAL in project.said:
        return
    project.said.add(_RENEWAL)
    from provision.project.cloud import cloud_of

    try:
        _imported(project, cloud_of(project), ensure_key(project.home / "key"))
    except CloudError as error:
        ends = (
            "may be over"
            if login is None
            else f"ends in {max(0, int(login.expires_s - now())) // 86_400} days"
        )
        project.say_once(
            f"the time of this project's key in your login profile {ends}, and it was not renewed: {error.why or error.what}"
        )


def log_out(project: Project, cloud: ComputeCloud, login: Login) -> None:
    """Take the project's key out of the login profile."""
    cloud.os_logout(login.key)
    _record(project).unlink(missing_ok=True)


def explain(project: Project, user: str, error: Unreachable) -> None:
    """A VM that lets nobody in though OS Login knows the key: the role is missing."""
    if user != USER and error.what.startswith("no key is accepted"):
        error.why += f"\nOS Login is on for this VM: the account needs {oslogin.LOGIN_ROLE}"
        member = f"--member user:YOU --role {oslogin.LOGIN_ROLE}"
        error.fix = f"gcloud projects add-iam-policy-binding {project.settings.project} {member}"
