"""Requests about OS Login: the account of the credentials, and the keys in its login profile."""

from __future__ import annotations

from typing import Any

from provision.cloud.api.client import ComputeClient
from provision.cloud.api.credentials import CLOUD_PLATFORM_SCOPE, LOGIN_COMMAND, email_of
from provision.cloud.api.google_library import as_json
from provision.cloud.api.oslogin import find_key, username
from provision.cloud.api.protocol import Login
from provision.core.errors import CloudAuthError

USEC = 1_000_000
_EMAIL_SCOPE = "https://www.googleapis.com/auth/userinfo.email"
_OPENID_ENDPOINT = "https://openidconnect.googleapis.com"


def fetch_account(client: ComputeClient) -> str:
    """Return the e-mail address of the credentials' account; no request where they contain it.

    Raises `CloudAuthError` when it cannot be found out.
    """
    known = email_of(client.credentials())
    if "@" in known:
        return known
    url = f"{client.endpoint or _OPENID_ENDPOINT}/v1/userinfo"
    reply = client.get_url(url, "the account of the credentials could not be requested")
    email = str(reply.json().get("email", "")) if reply.ok else ""
    if not email:
        raise CloudAuthError(
            "the account of the credentials is unknown",
            why=f"{url}: {reply.status_code} {reply.reason}",
            fix=f"{LOGIN_COMMAND} --scopes=openid,{_EMAIL_SCOPE},{CLOUD_PLATFORM_SCOPE}",
        )
    return email


def add_login_key(client: ComputeClient, public_key: str, expires_s: int) -> Login:
    """Add a key to the login profile of the credentials' account, until `expires_s` (epoch).

    The import of a key that is there already does not change its expiry; a second request does,
    as gcloud's.
    """
    account = fetch_account(client)
    profile = import_key(client, account, public_key, expires_s)
    name, current_s = find_key(profile, public_key)
    if name and current_s != expires_s:
        extend_key(client, name, public_key, expires_s)
    user = username(profile, account)
    return Login(account=account, user=user, key=name, expires_s=expires_s)


def import_key(
    client: ComputeClient, account: str, public_key: str, expires_s: int
) -> dict[str, Any]:
    """Add a key to the account's login profile; return the profile as the API's JSON."""
    reply = client.request_os_login(
        "import_ssh_public_key",
        "OS Login did not take the key",
        account,
        parent=f"users/{account}",
        ssh_public_key={"key": public_key, "expiration_time_usec": expires_s * USEC},
        project_id=client.project,
    )
    profile: dict[str, Any] = as_json(reply).get("loginProfile", {})
    return profile


def extend_key(client: ComputeClient, name: str, public_key: str, expires_s: int) -> None:
    """Change the expiry (epoch seconds) of a key in a login profile."""
    client.request_os_login(
        "update_ssh_public_key",
        "OS Login did not renew the key",
        name,
        name=name,
        ssh_public_key={"key": public_key, "expiration_time_usec": expires_s * USEC},
        update_mask="expirationTimeUsec",
    )


def delete_key(client: ComputeClient, name: str) -> None:
    """Remove a key from a login profile. Raises `CloudNotFound` when it is not there."""
    client.request_os_login(
        "delete_ssh_public_key", "OS Login did not remove the key", name, name=name
    )
