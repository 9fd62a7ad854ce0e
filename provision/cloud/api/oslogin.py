"""OS Login: whether a VM uses it, and the user name that it gives us. Pure.

Where `enable-oslogin` is on, the guest ignores keys in metadata without a message; an instance's
own metadata overrides the project's, and an organisation can forbid to turn it off (Compute
Engine, "Set up OS Login"; "Manage OS Login in an organization").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.cloud.refusal import CloudRefused
from provision.core.errors import CloudAuthError

METADATA_KEY = "enable-oslogin"
CONSTRAINT = "compute.requireOsLogin"
"""The organisation policy that requires OS Login; a request that turns it off is refused, and the
message names the policy."""
LOGIN_ROLE = "roles/compute.osAdminLogin"
"""Role for a login with sudo; `roles/compute.osLogin` is without sudo."""
_TRUE_VALUES = ("true", "yes", "y", "1")


def is_enabled(*levels: Mapping[str, str]) -> bool:
    """Return the value of the first level that has one: instance metadata, then the project's."""
    value = next((level[METADATA_KEY] for level in levels if METADATA_KEY in level), "")
    return value.strip().lower() in _TRUE_VALUES


def is_required_by_policy(error: CloudRefused) -> bool:
    """Return whether the request was refused because OS Login must be on."""
    return CONSTRAINT.lower() in error.refusal.message.lower()


def metadata_with_os_login(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a VM's metadata with OS Login turned on and without its keys."""
    kept = {key: value for key, value in metadata.items() if key != "ssh-keys"}
    return {**kept, METADATA_KEY: "TRUE"}


def username(profile: Mapping[str, Any], account: str) -> str:
    """Return the POSIX user name of a login profile: that of its primary Linux account.

    Raises `CloudAuthError` when the profile has no such account.
    """
    accounts = [
        posix
        for posix in profile.get("posixAccounts", ())
        if posix.get("operatingSystemType", "LINUX") != "WINDOWS"
    ]
    primary = [posix for posix in accounts if posix.get("primary")]
    chosen: Mapping[str, Any] = next(iter((*primary, *accounts)), {})
    if not chosen.get("username"):
        raise CloudAuthError(
            "OS Login gives no user name",
            where=account,
            why="its login profile has no POSIX account for Linux",
            fix="gcloud compute os-login describe-profile",
        )
    return str(chosen["username"])


def find_key(profile: Mapping[str, Any], public_key: str) -> tuple[str, int | None]:
    """Return a key's name in a login profile, and its expiry (epoch seconds, None = never).

    The name is "" when the profile does not contain the key.
    """
    blob = public_key.split()[1:2]
    for entry in profile.get("sshPublicKeys", {}).values():
        if entry.get("key", "").split()[1:2] == blob:
            usec = int(entry.get("expirationTimeUsec", 0))
            return str(entry.get("name", "")), usec // 1_000_000 if usec else None
    return "", None
