"""How tasks log in to VMs: with the project's key in the instance's metadata, or through OS Login.

A key that OS Login knows opens whatever its owner's roles open, in every project, so it has an end: it is imported for 30 days, and
anew by whatever makes, starts or waits for a VM, and by any task on such a VM in its last week. `vm.gc` takes it away once no VM of
the project is left.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

from provision.app.session import Session
from provision.app.state import replace_whole
from provision.cloud import oslogin
from provision.cloud.ports import ComputeCloud, Login
from provision.errors import CloudError, Unreachable
from provision.hosts.keys import KeyPair, ensure_key
from provision.model import Vm

USER = "provision"
"""Account that the key in an instance's metadata makes: with sudo and Docker (guest agent's defaults)."""
LOGIN_LASTS_S = 30 * 86_400
RENEWED_BEFORE_S = 7 * 86_400
_RENEWAL = "the renewal of the key in the login profile was tried"
now = time.time
"""Seconds since the epoch."""


def wants_os_login(session: Session, cloud: ComputeCloud) -> bool:
    """Whether a new VM is to use OS Login; `auto` does what the project's metadata says."""
    if session.settings.os_login == "auto":
        return oslogin.is_on(cloud.project_metadata())
    return session.settings.os_login == "on"


def user_of(session: Session, cloud: ComputeCloud, vm: Vm, key: KeyPair) -> str:
    """Who to log in as, by the metadata that the VM sees; with OS Login the key is imported first, once more if need be."""
    levels = [vm.metadata] if oslogin.KEY in vm.metadata else [cloud.project_metadata()]
    return _imported(session, cloud, key).user if oslogin.is_on(*levels) else USER


def _imported(session: Session, cloud: ComputeCloud, key: KeyPair) -> Login:
    login = cloud.os_login(key.public_line, int(now()) + LOGIN_LASTS_S)
    replace_whole(_record(session), json.dumps(asdict(login)))
    return login


def _record(session: Session) -> Path:
    return session.home / "os_login.json"


def login_of(session: Session) -> Login | None:
    """The project's key in a login profile, as it was imported last from here; None when it never was, or was taken away."""
    try:
        return Login(**json.loads(_record(session).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def renew(session: Session) -> None:
    """Give the imported key more time when its end is near. Tried once in a call; where it fails, that is said and the work goes on."""
    login = login_of(session)
    if (login is not None and login.expires_s - now() > RENEWED_BEFORE_S) or _RENEWAL in session.said:
        return
    session.said.add(_RENEWAL)
    from provision.app.clouds import cloud_of

    try:
        _imported(session, cloud_of(session), ensure_key(session.home / "key"))
    except CloudError as error:
        ends = "may be over" if login is None else f"ends in {max(0, int(login.expires_s - now())) // 86_400} days"
        session.say_once(f"the time of this project's key in your login profile {ends}, and it was not renewed: {error.why or error.what}")


def log_out(session: Session, cloud: ComputeCloud, login: Login) -> None:
    """Take the project's key out of the login profile."""
    cloud.os_logout(login.key)
    _record(session).unlink(missing_ok=True)


def explain(session: Session, user: str, error: Unreachable) -> None:
    """A VM that lets nobody in though OS Login knows the key: the role is missing."""
    if user != USER and error.what.startswith("no key is accepted"):
        error.why += f"\nOS Login is on for this VM: the account needs {oslogin.LOGIN_ROLE}"
        member = f"--member user:YOU --role {oslogin.LOGIN_ROLE}"
        error.fix = f"gcloud projects add-iam-policy-binding {session.settings.project} {member}"
