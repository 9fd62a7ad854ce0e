"""The part of the OS Login API v1 that logging in to a VM takes, on the emulator's own port: who somebody is, and their keys.

Every request is the same person's, `ACCOUNT`, since the emulator asks nobody for credentials. User names follow Google's rule: the
e-mail address with `_` for what a name cannot hold, `sa_UNIQUEID` for service accounts (OS Login, "Set up OS Login").
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from werkzeug.routing import Map, Rule

from provision.testing.compute.errors import ApiError, Json

PREFIX = "/v1/"
ACCOUNT = "me@example.com"
ROUTES = Map(
    [
        Rule("/v1/userinfo", endpoint="userinfo", methods=["GET"]),
        Rule("/v1/users/<name>/loginProfile", endpoint="oslogin.users.getLoginProfile", methods=["GET"]),
        Rule("/v1/users/<name>:importSshPublicKey", endpoint="oslogin.users.importSshPublicKey", methods=["POST"]),
    ]
)
"""Endpoint = `oslogin.` and the method id of its discovery document; `userinfo` is OpenID Connect's."""
METHODS = frozenset(str(rule.endpoint) for rule in ROUTES.iter_rules())


class Logins:
    """Accounts and their keys. `on_import` is told of each (user name, key line)."""

    def __init__(self) -> None:
        self.on_import: Callable[[str, str], None] = lambda user, line: None
        self._keys: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """(user name, key line) of everybody who may log in."""
        with self._lock:
            return tuple((username(account), line) for account, keys in self._keys.items() for line in keys.values())

    def snapshot(self) -> dict[str, dict[str, str]]:
        """Account → fingerprint → key line."""
        with self._lock:
            return {account: dict(keys) for account, keys in self._keys.items()}

    def restore(self, saved: Mapping[str, Mapping[str, str]]) -> None:
        """Take up what `snapshot` gave."""
        with self._lock:
            self._keys = {account: dict(keys) for account, keys in saved.items()}

    def answer(self, method: str, name: str, body: Mapping[str, Any]) -> Json:
        """The reply to one request; 403 for another account than `ACCOUNT`."""
        if method == "userinfo":
            return {"sub": "108000000000000000001", "email": ACCOUNT, "email_verified": True}
        if name != ACCOUNT:
            raise ApiError(403, "forbidden", f"The caller does not have permission to act for users/{name}.")
        if method == "oslogin.users.getLoginProfile":
            return self._profile(name)
        words = str(body.get("key", "")).split()
        if len(words) < 2 or not re.fullmatch(r"(ssh|ecdsa|sk)-\S+", words[0]):
            raise ApiError(400, "badRequest", "Invalid SSH public key.")
        line = " ".join(words)
        with self._lock:
            self._keys.setdefault(name, {})[hashlib.sha256(" ".join(words[:2]).encode()).hexdigest()] = line
        self.on_import(username(name), line)
        return {"loginProfile": self._profile(name), "details": ""}

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
                mark: {"key": line, "fingerprint": mark, "name": f"users/{account}/sshPublicKeys/{mark}"}
                for mark, line in self._keys.get(account, {}).items()
            }
        return {"name": "108000000000000000001", "posixAccounts": [posix], "sshPublicKeys": keys}


def username(account: str) -> str:
    """The POSIX user name of an account."""
    local, _, domain = account.partition("@")
    if domain.endswith(".gserviceaccount.com"):
        return f"sa_{int(hashlib.sha256(local.encode()).hexdigest()[:16], 16)}"
    return re.sub(r"[^a-z0-9_-]", "_", account.lower())[:32]
