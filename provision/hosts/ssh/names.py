"""Checks of host names and user names that reach ssh's command line or a proxy command's shell."""

from __future__ import annotations

from provision.core.errors import UsageError

_HOST_FORBIDDEN = (
    set("'`\"$\\;&<>|(){}!*?#~") | {chr(code) for code in range(33)} | {"\x7f", "/", "@"}
)
_USER_FORBIDDEN = set("'`\";&<>|(){}") | {chr(code) for code in range(32)} | {"\x7f"}


def check_host_name(address: str, *, where: str) -> str:
    """Return the address unchanged if it is safe in a command line.

    Raises `UsageError` when it could be read as an option or by a proxy command's shell. OpenSSH
    refuses the same characters since 9.6 (ssh.c, valid_hostname). `where` is the host's name in the
    settings.
    """
    bad = sorted(set(address) & _HOST_FORBIDDEN)
    if not address or address.startswith("-") or bad or address.count(":") == 1:
        why = (
            f"{address!r} contains {bad[0]!r}"
            if bad
            else f"{address!r} is empty, begins with '-' or holds a port"
        )
        raise UsageError(
            "not a host name or address",
            where=where,
            why=why,
            fix=f"set provision.hosts.{where}.address",
        )
    return address


def check_user_name(user: str, *, where: str) -> str:
    """Return the user name unchanged if OpenSSH accepts it (ssh.c, valid_ruser).

    Raises `UsageError` otherwise. `where` is the host's name in the settings.
    """
    bad = sorted(set(user) & _USER_FORBIDDEN)
    if not user or user.startswith("-") or bad or user.endswith("\\") or user != user.strip():
        why = (
            f"{user!r} contains {bad[0]!r}"
            if bad
            else f"{user!r} is empty, begins with '-' or ends with a space or backslash"
        )
        raise UsageError(
            "not a user name", where=where, why=why, fix=f"set provision.hosts.{where}.user"
        )
    return user
