"""The part of the OS Login API v1 that a login to a VM needs: the account and its SSH keys.

Every request comes from the account `ACCOUNT`, since the emulator checks no credentials. User names
follow Google's rule: the e-mail address with `_` for what a name cannot hold, `sa_UNIQUEID`
for service accounts (OS Login, "Set up OS Login").
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from werkzeug.routing import Map, Rule

from provision.testing.compute.errors import ApiError, Json

PREFIX = "/v1/"
ACCOUNT = "me@example.com"
ROUTES = Map(
    [
        Rule("/v1/userinfo", endpoint="userinfo", methods=["GET"]),
        Rule(
            "/v1/users/<name>/loginProfile",
            endpoint="oslogin.users.getLoginProfile",
            methods=["GET"],
        ),
        Rule(
            "/v1/users/<name>:importSshPublicKey",
            endpoint="oslogin.users.importSshPublicKey",
            methods=["POST"],
        ),
        Rule(
            "/v1/users/<name>/sshPublicKeys/<key>",
            endpoint="oslogin.users.sshPublicKeys.patch",
            methods=["PATCH"],
        ),
        Rule(
            "/v1/users/<name>/sshPublicKeys/<key>",
            endpoint="oslogin.users.sshPublicKeys.delete",
            methods=["DELETE"],
        ),
    ]
)
"""Endpoint = `oslogin.` and the method id of its discovery document; `userinfo` is OpenID
Connect's."""
METHODS = frozenset(str(rule.endpoint) for rule in ROUTES.iter_rules())


_EXPIRES = "expirationTimeUsec"
_USEC = 1_000_000


class Logins:
    """Accounts and their SSH keys. `on_import` is called with the user name of each imported key.

    `now` returns seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.on_import: Callable[[str], None] = lambda user: None
        self._now = now
        self._keys: dict[str, dict[str, Json]] = {}
        self._lock = threading.Lock()

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """(user name, key line) of every key that has not expired."""
        with self._lock:
            held = [
                (username(account), key)
                for account, keys in self._keys.items()
                for key in keys.values()
            ]
        return tuple(
            (user, key["key"])
            for user, key in held
            if _EXPIRES not in key or int(key[_EXPIRES]) > self._now() * _USEC
        )

    def snapshot(self) -> dict[str, dict[str, Json]]:
        """Account → fingerprint → key (`key`, and `expirationTimeUsec` if it expires)."""
        with self._lock:
            return {
                account: {fingerprint: dict(key) for fingerprint, key in keys.items()}
                for account, keys in self._keys.items()
            }

    def restore(self, saved: Mapping[str, Mapping[str, Json]]) -> None:
        """Restore what `snapshot` returned."""
        with self._lock:
            self._keys = {
                account: {fingerprint: dict(key) for fingerprint, key in keys.items()}
                for account, keys in saved.items()
            }

    def answer(self, method: str, name: str, key: str, body: Mapping[str, Any]) -> Json:
        """The reply to one request. Raises `ApiError`: 403 for another account, 404, 400."""
        if method == "userinfo":
            return {"sub": "108000000000000000001", "email": ACCOUNT, "email_verified": True}
        if name != ACCOUNT:
            raise ApiError(
                403, "forbidden", f"The caller does not have permission to act for users/{name}."
            )
        match method.removeprefix("oslogin.users."):
            case "getLoginProfile":
                return self._profile(name)
            case "importSshPublicKey":
                return self._import_key(name, body)
            case verb:
                return self._change_key(name, key, body if verb == "sshPublicKeys.patch" else None)

    def _import_key(self, name: str, body: Mapping[str, Any]) -> Json:
        """Add a key; one that exists keeps its expiry, as gcloud's `ssh_utils` expects."""
        words = str(body.get("key", "")).split()
        if len(words) < 2 or not re.fullmatch(r"(ssh|ecdsa|sk)-\S+", words[0]):
            raise ApiError(400, "badRequest", "Invalid SSH public key.")
        key = {"key": " ".join(words), **self._expiry(body)}
        with self._lock:
            self._keys.setdefault(name, {}).setdefault(
                hashlib.sha256(" ".join(words[:2]).encode()).hexdigest(), key
            )
        self.on_import(username(name))
        return {"loginProfile": self._profile(name), "details": ""}

    def _change_key(self, name: str, fingerprint: str, body: Mapping[str, Any] | None) -> Json:
        """Set a key's expiry, or without a body remove the key."""
        with self._lock:
            keys = self._keys.get(name, {})
            if fingerprint not in keys:
                raise ApiError(
                    404, "notFound", f"users/{name}/sshPublicKeys/{fingerprint} was not found."
                )
            if body is None:
                del keys[fingerprint]
                return {}
            keys[fingerprint] = {"key": keys[fingerprint]["key"], **self._expiry(body)}
            return _public(name, fingerprint, keys[fingerprint])

    def _expiry(self, body: Mapping[str, Any]) -> Json:
        if not int(body.get(_EXPIRES, 0)):
            return {}
        if int(body[_EXPIRES]) <= self._now() * _USEC:
            raise ApiError(400, "badRequest", "The expiration time must be in the future.")
        return {_EXPIRES: str(body[_EXPIRES])}

    def _profile(self, account: str) -> Json:
        user = username(account)
        posix = {
            "primary": True,
            "username": user,
            "uid": str(1_000_000_000 + int(hashlib.sha256(account.encode()).hexdigest()[:6], 16)),
            "gid": "1000000000",
            "homeDirectory": f"/home/{user}",
            "operatingSystemType": "LINUX",
        }
        with self._lock:
            keys = {
                fingerprint: _public(account, fingerprint, key)
                for fingerprint, key in self._keys.get(account, {}).items()
            }
        return {"name": "108000000000000000001", "posixAccounts": [posix], "sshPublicKeys": keys}


def _public(account: str, fingerprint: str, key: Json) -> Json:
    return {
        **key,
        "fingerprint": fingerprint,
        "name": f"users/{account}/sshPublicKeys/{fingerprint}",
    }


def username(account: str) -> str:
    """The POSIX user name of an account."""
    local, _, domain = account.partition("@")
    if domain.endswith(".gserviceaccount.com"):
        return f"sa_{int(hashlib.sha256(local.encode()).hexdigest()[:16], 16)}"
    return re.sub(r"[^a-z0-9_-]", "_", account.lower())[:32]
