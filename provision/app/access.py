"""How tasks log in to VMs: with the project's key in the instance's metadata, or through OS Login."""

from __future__ import annotations

from provision.app.session import Session
from provision.cloud import oslogin
from provision.cloud.ports import ComputeCloud
from provision.errors import Unreachable
from provision.hosts.keys import KeyPair
from provision.model import Vm

USER = "provision"
"""Account that the key in an instance's metadata makes: with sudo and Docker (guest agent's defaults)."""


def wants_os_login(session: Session, cloud: ComputeCloud) -> bool:
    """Whether a new VM is to use OS Login; `auto` does what the project's metadata says."""
    if session.settings.os_login == "auto":
        return oslogin.is_on(cloud.project_metadata())
    return session.settings.os_login == "on"


def user_of(cloud: ComputeCloud, vm: Vm, key: KeyPair) -> str:
    """Who to log in as, by the metadata that the VM sees; with OS Login the key is imported first, once more if need be."""
    levels = [vm.metadata] if oslogin.KEY in vm.metadata else [cloud.project_metadata()]
    return cloud.os_login(key.public_line) if oslogin.is_on(*levels) else USER


def explain(session: Session, user: str, error: Unreachable) -> None:
    """A VM that lets nobody in though OS Login knows the key: the role is missing."""
    if user != USER and error.what.startswith("no key is accepted"):
        error.why += f"\nOS Login is on for this VM: the account needs {oslogin.LOGIN_ROLE}"
        member = f"--member user:YOU --role {oslogin.LOGIN_ROLE}"
        error.fix = f"gcloud projects add-iam-policy-binding {session.settings.project} {member}"
