"""OS Login: whether a VM uses it, and as whom it lets us in. Pure.

Where `enable-oslogin` is on, keys in metadata are ignored without a word; an instance's own
metadata beats the project's, and the organisation may forbid to turn it off (Compute Engine, "Set
up OS Login"; "Manage OS Login in an organization").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.cloud.refusal import CloudRefused
from provision.core.errors import CloudAuthError

KEY = "enable-oslogin"
CONSTRAINT = "compute.requireOsLogin"
"""The organisation's policy that wants OS Login on; a request that turns it off is refused under
its name."""
LOGIN_ROLE = "roles/compute.osAdminLogin"
"""Lets somebody log in, with sudo; `roles/compute.osLogin` is without."""
_YES = ("true", "yes", "y", "1")


def is_on(*levels: Mapping[str, str]) -> bool:
    """What the first level that says anything says: the instance's metadata, then the project's."""
    said = next((level[KEY] for level in levels if KEY in level), "")
    return said.strip().lower() in _YES


def is_forced(error: CloudRefused) -> bool:
    """True for a refusal because OS Login must be on."""
    return CONSTRAINT.lower() in error.refusal.message.lower()


def instead_of_key(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a VM that was to have a key in it, with OS Login instead."""
    return {**{key: value for key, value in metadata.items() if key != "ssh-keys"}, KEY: "TRUE"}


def username(profile: Mapping[str, Any], account: str) -> str:
    """The POSIX user name of a login profile: that of its primary account. Raises `CloudAuthError` where it has none."""
    accounts = [
        each
        for each in profile.get("posixAccounts", ())
        if each.get("operatingSystemType", "LINUX") != "WINDOWS"
    ]
    chosen = next(
        (each for each in accounts if each.get("primary")), accounts[0] if accounts else {}
    )
    if not chosen.get("username"):
        why = "its login profile has no POSIX account for Linux"
        raise CloudAuthError(
            "OS Login gives no user name",
            where=account,
            why=why,
            fix="gcloud compute os-login describe-profile",
        )
    return str(chosen["username"])


def held(profile: Mapping[str, Any], public_key: str) -> tuple[str, int | None]:
    """The name of a key in a login profile, and when it ends (seconds since the epoch; None = never); "" where it is not in it."""
    blob = public_key.split()[1:2]
    for found in profile.get("sshPublicKeys", {}).values():
        if found.get("key", "").split()[1:2] == blob:
            usec = int(found.get("expirationTimeUsec", 0))
            return str(found.get("name", "")), usec // 1_000_000 if usec else None
    return "", None
