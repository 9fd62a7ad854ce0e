"""Checks of setting values. Each raises `ValueError` with the words that complete "allowed: …"."""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Callable

from pydantic import AfterValidator

from provision.core.durations import parse_duration

TTL_MIN_S = 30
TTL_MAX_S = 120 * 86400
"""Bounds of `maxRunDuration` (Compute Engine, "Limit the run time of a VM")."""

IDLE_MIN_S = 5 * 60
"""The VM looks for use once a minute; a shorter span would rest on too few looks."""
IDLE_MAX_S = 365 * 86400

WAIT_MIN_S = 90
WAIT_MAX_S = 2 * 3600
"""Bounds of a wait for capacity (Compute Engine, "About Flex-start VMs")."""

KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
"""Types of host keys that can be pinned."""

PIPE_DIR_MAX_BYTES = 88
"""Longest MPS pipe folder: a Unix socket's path holds 107 bytes, and the longest name that MPS
appends is `/control_privileged`."""

_SHARED_FOLDERS = re.compile(
    r"/(bin|boot|dev|etc|home|lib|lib64|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var|workspace)?"
)
_DRIVER_FOLDERS = ("/usr/local/nvidia", "/usr/local/nvidia/bin", "/usr/local/nvidia/lib64")


# --- shapes ---------------------------------------------------------------------------------------


def matching(pattern: str, allowed: str) -> AfterValidator:
    """A validator for text that matches `pattern` as a whole."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(allowed)
        return value

    return AfterValidator(check)


def printable_text(allowed: str) -> AfterValidator:
    """A validator for text that is not blank and has no control characters."""

    def check(value: str) -> str:
        if not value.strip() or any(ord(char) < 32 or ord(char) == 127 for char in value):
            raise ValueError(allowed)
        return value

    return AfterValidator(check)


def whole_number(low: int, high: int | None = None) -> AfterValidator:
    """A validator for a number from `low` to `high`; None for no upper bound."""
    allowed = f"a whole number from {low} to {high}"
    if high is None:
        allowed = f"a whole number of at least {low}"

    def check(value: int) -> int:
        if value < low or (high is not None and value > high):
            raise ValueError(allowed)
        return value

    return AfterValidator(check)


# --- what YAML makes of a word --------------------------------------------------------------------


def none_word(value: object) -> object:
    """None for the word `none`."""
    return None if value == "none" else value


def switch_word(value: object) -> object:
    """`on` for True and `off` for False, which YAML makes of the unquoted words."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def number_as_text(value: object) -> object:
    """A number as text, since YAML reads digits that are not quoted as a number."""
    return str(value) if type(value) is int else value


# --- time spans -----------------------------------------------------------------------------------


def _seconds_between(text: str, low_s: int, high_s: int, allowed: str) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise ValueError(allowed) from None
    if not low_s <= seconds <= high_s:
        raise ValueError(allowed)
    return seconds


def duration_seconds(text: str) -> int:
    """Seconds of a time span such as `10s` or `1h30m`."""
    return _seconds_between(text, 1, TTL_MAX_S, "a time such as 10s, 15m or 1h30m, at most 120d")


def ttl_seconds(text: str) -> int | None:
    """Seconds of a time to live such as `8h`, `1d12h` or `90m`; None for `none`."""
    allowed = (
        'a time such as 8h, 90m or 1d12h, from 30s to 120d (the cloud\'s own bounds), or "none"'
    )
    return None if text == "none" else _seconds_between(text, TTL_MIN_S, TTL_MAX_S, allowed)


def idle_seconds(text: str) -> int | None:
    """Seconds without use such as `45m` or `7d`; None for `none`."""
    allowed = 'a time such as 45m, 2h or 7d, from 5m to 365d, or "none"'
    return None if text == "none" else _seconds_between(text, IDLE_MIN_S, IDLE_MAX_S, allowed)


def wait_seconds(text: str) -> int:
    """Seconds of a wait for capacity such as `10m`."""
    return _seconds_between(text, WAIT_MIN_S, WAIT_MAX_S, "a time from 90s to 2h, such as 10m")


def parsed_by(parse: Callable[[str], object]) -> AfterValidator:
    """A validator for text that `parse` accepts; the value stays the text."""

    def check(value: str) -> str:
        parse(value)
        return value

    return AfterValidator(check)


# --- keys, folders, CPUs, volumes -----------------------------------------------------------------


def public_key(line: str) -> tuple[str, bytes]:
    """Type and wire-format blob of a public key line ("ssh-ed25519 AAAA… comment").

    Raises `ValueError` for a truncated or garbled key: pinned, it would make the host's real key
    look like an attacker's.
    """
    words = line.split()
    if len(words) < 2 or words[0] not in KEY_TYPES:
        types = ", ".join(KEY_TYPES)
        raise ValueError(
            f'one public key line, its type ({types}) first, such as "ssh-ed25519 AAAAC3Nza…"'
        )
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        blob = base64.b64decode(words[1], validate=True)
        load_ssh_public_key(f"{words[0]} {words[1]}".encode())
    except ValueError:
        raise ValueError(f"a whole {words[0]} key: this one is truncated or garbled") from None
    return words[0], blob


def host_key(value: str) -> str:
    """A public key line without its comment."""
    public_key(value)
    return " ".join(value.split()[:2])


def pipe_dir(value: str) -> str:
    """Return `value`, a pipe directory of MPS. Raises `ValueError` if it is too long or shared."""
    size = len(value.encode())
    if size > PIPE_DIR_MAX_BYTES:
        raise ValueError(
            f"a folder of at most {PIPE_DIR_MAX_BYTES} bytes (this one has {size}): "
            "MPS puts Unix sockets into it"
        )
    if _SHARED_FOLDERS.fullmatch(posixpath.normpath(f"/{value.lstrip('/')}")):
        raise ValueError(
            "a folder of its own, such as /run/mps/pipe: every user may write into it "
            "while MPS is on"
        )
    return value


def cpu_list(value: str) -> str:
    """The list as the kernel prints it: ascending, without overlaps (`3,0-1` becomes `0-1,3`).

    Raises `ValueError` for anything else than a list of CPUs.
    """
    allowed = "CPUs as taskset takes them, such as 0-3 or 0,2,4-5"
    if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", value, re.ASCII):
        raise ValueError(allowed)
    cpus: set[int] = set()
    for part in value.split(","):
        low, _, high = part.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    if not cpus:
        raise ValueError(allowed)
    starts = sorted(cpu for cpu in cpus if cpu - 1 not in cpus)
    ends = sorted(cpu for cpu in cpus if cpu + 1 not in cpus)
    return ",".join(
        str(low) if low == high else f"{low}-{high}" for low, high in zip(starts, ends, strict=True)
    )


def volume(value: str) -> str:
    """Return `value`, a volume of `docker run`. Raises `ValueError` if invalid or reserved."""
    allowed = (
        "SRC:DST or SRC:DST:ro, where SRC is an absolute path or a volume's name "
        "and DST an absolute path"
    )
    parts = value.split(":")
    if len(parts) not in (2, 3) or parts[2:] not in ([], ["ro"], ["rw"]):
        raise ValueError(allowed)
    source, target = parts[:2]
    if not re.fullmatch(r"/.*|[A-Za-z0-9][A-Za-z0-9_.-]+", source):
        raise ValueError(allowed)
    if not re.fullmatch(r"/.+", target):
        raise ValueError(allowed)
    if target.rstrip("/") in _DRIVER_FOLDERS:
        raise ValueError("any DST but /usr/local/nvidia, where the driver is mounted")
    return value
