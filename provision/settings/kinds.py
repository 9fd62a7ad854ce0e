"""The kinds of values a setting may have: what is accepted, and the words that say so when it is not."""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Strict

from provision.core.durations import parse_duration

TTL_MIN_S = 30
TTL_MAX_S = 120 * 86400
"""Bounds of `maxRunDuration` (Compute Engine, "Limit the run time of a VM")."""

IDLE_MIN_S = 5 * 60
"""The VM looks once a minute: less would be a guess."""
IDLE_MAX_S = 365 * 86400

KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
"""Host keys that are checked here."""

SUN_PATH_ROOM = 88
"""Longest MPS pipe folder, bytes: a Unix socket's path holds 107, and the longest name that MPS
appends is `/control_privileged`."""


def matching(pattern: str, allowed: str) -> AfterValidator:
    """A validator for text that matches `pattern` as a whole; `allowed` completes "allowed: …"."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(allowed)
        return value

    return AfterValidator(check)


def _plain_text(allowed: str) -> AfterValidator:
    def check(value: str) -> str:
        if not value.strip() or any(ord(char) < 32 or ord(char) == 127 for char in value):
            raise ValueError(allowed)
        return value

    return AfterValidator(check)


def _total_s(text: str) -> int:
    """Seconds of `1d12h`; 0 for a text that is not a time span."""
    try:
        return parse_duration(text)
    except ValueError:
        return 0


def duration_seconds(text: str) -> int:
    """Seconds of a time such as `10s` or `1h30m`. Raises ValueError with what is allowed."""
    total_s = _total_s(text)
    if not 1 <= total_s <= TTL_MAX_S:
        raise ValueError("a time such as 10s, 15m or 1h30m, at most 120d")
    return total_s


def ttl_seconds(text: str) -> int | None:
    """Seconds of a time to live such as `8h`, `1d12h` or `90m`; None for `none`. Raises ValueError with what is allowed."""
    if text == "none":
        return None
    total_s = _total_s(text)
    if not TTL_MIN_S <= total_s <= TTL_MAX_S:
        raise ValueError(
            'a time such as 8h, 90m or 1d12h, from 30s to 120d (the cloud\'s own bounds), or "none"'
        )
    return total_s


def idle_seconds(text: str) -> int | None:
    """Seconds without use such as `45m` or `7d`; None for `none`. Raises ValueError with what is allowed."""
    if text == "none":
        return None
    total_s = _total_s(text)
    if not IDLE_MIN_S <= total_s <= IDLE_MAX_S:
        raise ValueError('a time such as 45m, 2h or 7d, from 5m to 365d, or "none"')
    return total_s


def _idle(value: str) -> str:
    idle_seconds(value)
    return value


def _ttl(value: str) -> str:
    ttl_seconds(value)
    return value


def wait_seconds(text: str) -> int:
    """Seconds of a wait such as `10m`; raises ValueError with what is allowed (bounds: "About Flex-start VMs")."""
    total_s = _total_s(text)
    if not 90 <= total_s <= 2 * 3600:
        raise ValueError("a time from 90s to 2h, such as 10m")
    return total_s


def _wait(value: str) -> str:
    wait_seconds(value)
    return value


def _none_word(value: object) -> object:
    return None if value == "none" else value


def _switch_word(value: object) -> object:
    """YAML reads a bare `on` and `off` as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _number_as_text(value: object) -> object:
    return str(value) if type(value) is int else value


def public_key(line: str) -> tuple[str, bytes]:
    """Type and wire-format blob of a public key line ("ssh-ed25519 AAAA… comment"). Raises ValueError with what is allowed.

    A key that lost its end, or a letter of its frame, is none: taken for one, it would make the
    host's true key look like an attacker's.
    """
    words = line.split()
    if len(words) < 2 or words[0] not in KEY_TYPES:
        raise ValueError(
            f'one public key line, its type ({", ".join(KEY_TYPES)}) first, such as "ssh-ed25519 AAAAC3Nza…"'
        )
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        blob = base64.b64decode(words[1], validate=True)
        load_ssh_public_key(f"{words[0]} {words[1]}".encode())
    except ValueError:
        raise ValueError(f"a whole {words[0]} key: this one is cut short or garbled") from None
    return words[0], blob


def _host_key(value: str) -> str:
    public_key(value)
    return " ".join(value.split()[:2])


_OTHERS = re.compile(
    r"/(bin|boot|dev|etc|home|lib|lib64|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var|workspace)?"
)
"""Folders that are not MPS's alone."""


def _pipe_dir(value: str) -> str:
    size = len(value.encode())
    if size > SUN_PATH_ROOM:
        raise ValueError(
            f"a folder of at most {SUN_PATH_ROOM} bytes (this one has {size}): MPS puts Unix sockets into it"
        )
    if _OTHERS.fullmatch(posixpath.normpath(f"/{value.lstrip('/')}")):
        raise ValueError(
            "a folder of its own, such as /run/mps/pipe: everybody may write into it while MPS is on"
        )
    return value


def _cpus(value: str) -> str:
    """The list as the kernel prints it: ascending, without overlaps (`3,0-1` reads `0-1,3`)."""
    allowed = "CPUs as taskset takes them, such as 0-3 or 0,2,4-5"
    if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", value, re.ASCII):
        raise ValueError(allowed)
    found: set[int] = set()
    for part in value.split(","):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    if not found:
        raise ValueError(allowed)
    starts = sorted(cpu for cpu in found if cpu - 1 not in found)
    ends = sorted(cpu for cpu in found if cpu + 1 not in found)
    return ",".join(
        str(low) if low == high else f"{low}-{high}" for low, high in zip(starts, ends, strict=True)
    )


def _volume(value: str) -> str:
    allowed = "SRC:DST or SRC:DST:ro, where SRC is an absolute path or a volume's name and DST an absolute path"
    parts = value.split(":")
    if len(parts) not in (2, 3) or parts[2:] not in ([], ["ro"], ["rw"]):
        raise ValueError(allowed)
    source, target = parts[:2]
    if not re.fullmatch(r"/.*|[A-Za-z0-9][A-Za-z0-9_.-]+", source) or not re.fullmatch(
        r"/.+", target
    ):
        raise ValueError(allowed)
    if target.rstrip("/") in (
        "/usr/local/nvidia",
        "/usr/local/nvidia/bin",
        "/usr/local/nvidia/lib64",
    ):
        raise ValueError("any DST but /usr/local/nvidia, where the driver is mounted")
    return value


def _whole(low: int, high: int | None = None) -> Callable[[int], int]:
    allowed = (
        f"a whole number of at least {low}"
        if high is None
        else f"a whole number from {low} to {high}"
    )

    def check(value: int) -> int:
        if value < low or (high is not None and value > high):
            raise ValueError(allowed)
        return value

    return check


_LABEL = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_REGISTRY = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?"
_PATH_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE_REF = rf"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{{1,5}})?/)?{_PATH_PART}(/{_PATH_PART})*(:[\w][\w.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"

Name: TypeAlias = Annotated[
    str, matching(_LABEL, "1 to 63 of a-z, 0-9 and -, a letter first, no - at the end (RFC 1035)")
]
Region: TypeAlias = Annotated[str, matching(r"[a-z]+(-[a-z]+)+\d+", "a region such as us-central1")]
Place: TypeAlias = Annotated[
    str,
    matching(
        r"everywhere|[a-z]+(-[a-z]+)+\d+(-[a-z])?",
        "a zone such as us-central1-a, a region such as us-central1, or everywhere",
    ),
]
Project: TypeAlias = Annotated[
    str,
    matching(
        r"([a-z][a-z0-9.-]*[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]",
        "a project id: 6 to 30 of a-z, 0-9 and -, a letter first",
    ),
]
MachineType: TypeAlias = Annotated[
    str, matching(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", "a machine type such as g2-standard-8")
]
Gpu: TypeAlias = Annotated[
    str,
    matching(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", 'an accelerator type such as nvidia-l4, or "none"'),
]
OptionalGpu: TypeAlias = Annotated[Gpu | None, BeforeValidator(_none_word)]
CosImage: TypeAlias = Annotated[
    str,
    matching(
        r"cos-[a-z0-9]([-a-z0-9]{0,58}[a-z0-9])?",
        "a family or an image of cos-cloud, such as cos-125-lts",
    ),
]
Idle: TypeAlias = Annotated[str, AfterValidator(_idle)]
Ttl: TypeAlias = Annotated[str, AfterValidator(_ttl)]
Wait: TypeAlias = Annotated[str, AfterValidator(_wait)]
Driver: TypeAlias = Annotated[
    str,
    matching(
        r"default|latest|R\d{3}|\d{3}\.\d{1,3}(\.\d{1,3})?",
        "default, latest, a branch such as R535, or a full version such as 535.183.01",
    ),
]
Registry: TypeAlias = Annotated[
    str, matching(_REGISTRY, "a registry's host, such as us-docker.pkg.dev")
]
Recipe: TypeAlias = Annotated[
    str, matching(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", 'a function as "module:function"')
]
ImageRef: TypeAlias = Annotated[
    str, matching(_IMAGE_REF, "an image reference such as us-docker.pkg.dev/PROJECT/REPO/NAME:TAG")
]
PythonVersion: TypeAlias = Annotated[
    str, matching(r"3\.\d{1,2}", 'a minor version in quotes, such as "3.11"')
]
BeamVersion: TypeAlias = Annotated[
    str, matching(r"\d+\.\d+\.\d+(rc\d+|\.dev\d*)?", "a release of Apache Beam, such as 2.77.0")
]
Requirement: TypeAlias = Annotated[
    str, _plain_text("one pip requirement on one line, such as torch==2.5.1")
]
AptPackage: TypeAlias = Annotated[
    str,
    matching(
        r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?",
        "a Debian package such as ffmpeg or ffmpeg=7:5.1.6-0",
    ),
]
EnvName: TypeAlias = Annotated[
    str,
    matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name: letters, digits and _, no digit first"),
]
EnvValue: TypeAlias = Annotated[
    str, BeforeValidator(_number_as_text), matching(r"[^\0]*", "text without a NUL byte")
]
ShmSize: TypeAlias = Annotated[
    str, matching(r"[1-9]\d*[bkmgBKMG]?", "a size as Docker takes it, such as 1g or 512m")
]
Volume: TypeAlias = Annotated[str, AfterValidator(_volume)]
ContainerName: TypeAlias = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,62}", "2 to 63 letters, digits, _, . and -")
]
LocalPath: TypeAlias = Annotated[str, _plain_text("a path on this machine")]
AbsolutePath: TypeAlias = Annotated[
    str, _plain_text("an absolute path"), matching(r"/.*", "an absolute path")
]
PipeDir: TypeAlias = Annotated[AbsolutePath, AfterValidator(_pipe_dir)]
HostName: TypeAlias = Annotated[
    str,
    matching(
        r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
        "letters, digits, ., _ and -, no sign at either end",
    ),
]
Address: TypeAlias = Annotated[
    str,
    matching(
        r"[A-Za-z0-9:][A-Za-z0-9._:%-]*",
        'a host name or address that ssh can reach, or "local" for this very machine',
    ),
]
User: TypeAlias = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", "a user's name on the host")
]
HostKey: TypeAlias = Annotated[str, AfterValidator(_host_key)]
Port: TypeAlias = Annotated[int, AfterValidator(_whole(1, 65535))]
DiskGb: TypeAlias = Annotated[int, AfterValidator(_whole(10, 65536))]
GpuCount: TypeAlias = Annotated[int, AfterValidator(_whole(0, 16))]
Processes: TypeAlias = Annotated[int, AfterValidator(_whole(1, 1024))]
MemoryLimit: TypeAlias = Annotated[
    str, matching(r"[1-9]\d{0,6}[GM]", "a whole number of G or M, such as 4G or 512M")
]
Cpus: TypeAlias = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_cpus)]
GpuChoice: TypeAlias = Annotated[
    str,
    BeforeValidator(_number_as_text),
    matching(
        r"\d{1,2}|GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "a GPU's index, or its whole UUID as nvidia-smi -L prints it",
    ),
]
Percentage: TypeAlias = Annotated[int, AfterValidator(_whole(1, 100))]

Places: TypeAlias = Annotated[tuple[Place, ...], Strict(False)]
OsLogin: TypeAlias = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch_word)]
Registries: TypeAlias = Annotated[tuple[Registry, ...], Strict(False)]
Recipes: TypeAlias = Annotated[tuple[Recipe, ...], Strict(False)]
Requirements: TypeAlias = Annotated[tuple[Requirement, ...], Strict(False)]
AptPackages: TypeAlias = Annotated[tuple[AptPackage, ...], Strict(False)]
Volumes: TypeAlias = Annotated[tuple[Volume, ...], Strict(False)]
