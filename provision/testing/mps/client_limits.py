"""What a client may use of a GPU under MPS: multiprocessors and memory."""

from __future__ import annotations

VOLTA = (7, 0)
HOPPER = (9, 0)
HOPPER_LEAST = 8
EVEN = 2
MIB = 1 << 20
CONTEXT_BASE_MIB = 27
CONTEXT_MIB_PER_MULTIPROCESSOR = 3.7


def usable_multiprocessors(total: int, percentage: float, capability: tuple[int, int]) -> int:
    """How many of `total` multiprocessors a client may use; 0 where the percentage rounds to zero.

    Measured on H100 and H200: rounded down to an even number, at least 8. On other GPUs users
    report a result of zero (k8s-device-plugin#1118: 16 % of 10). GPUs before Volta ignore the
    percentage (MPS guide).
    """
    if percentage >= 100 or capability < VOLTA:
        return total
    share = int(total * percentage / 100 + 1e-9) // EVEN * EVEN
    return max(share, min(HOPPER_LEAST, total)) if capability == HOPPER else share


def context_bytes(multiprocessors: int) -> int:
    """GPU memory of a context in bytes: 517 MiB with 132 multiprocessors, 79 MiB with 14.

    Measured on H100 and H200; an estimate for other GPUs.
    """
    return int((CONTEXT_BASE_MIB + CONTEXT_MIB_PER_MULTIPROCESSOR * multiprocessors) * MIB)


def with_limit(asked: dict[str, str], device: str, size: str) -> dict[str, str]:
    """The limits with that of `device` set last."""
    return {**{name: limit for name, limit in asked.items() if name != device}, device: size}


def limits_by_device(asked: dict[str, str], devices: list[str]) -> dict[str, int]:
    """Bytes by UUID. `asked` names devices by UUID or index in `devices`; the last entry wins."""
    found = {}
    for name, text in asked.items():
        named = (
            devices[int(name) : int(name) + 1]
            if name.isdigit()
            else [device for device in devices if device == name]
        )
        size = parse_size(text)
        if size is not None:
            found.update(dict.fromkeys(named, size))
    return found


def lowest_limits(*several: dict[str, int]) -> dict[str, int]:
    """The lowest limit of each device: a later limit never raises an earlier one (MPS guide)."""
    found: dict[str, int] = {}
    for limits in several:
        for device, size in limits.items():
            found[device] = min(size, found.get(device, size))
    return found


def parse_limits_variable(text: str) -> dict[str, str]:
    """The limits of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, such as `0=1G,1=512MB`, by device."""
    return {
        name.strip(): size.strip()
        for name, equals, size in (word.partition("=") for word in text.split(","))
        if equals
    }


def parse_size(text: str) -> int | None:
    """Bytes of `4G`, `512M`, `512MB`, or megabytes without a unit; None for any other text."""
    text = text.upper().removesuffix("B")
    unit = {"G": 1024 * MIB, "M": MIB}.get(text[-1:])
    number = text[:-1] if unit else text
    return int(number) * (unit or MIB) if number.isdigit() else None
