"""What a client gets of the GPU under MPS."""

from __future__ import annotations

VOLTA = (7, 0)
HOPPER = (9, 0)
HOPPER_LEAST = 8
EVEN = 2
MIB = 1 << 20
CONTEXT_BASE_MIB = 27
CONTEXT_MIB_PER_MULTIPROCESSOR = 3.7


def multiprocessors(total: int, percentage: float, capability: tuple[int, int]) -> int:
    """Those of `total` that a client may use; 0 where the share rounds to nothing.

    Measured on H100 and H200: rounded down to an even number, and to no less than 8. Of other GPUs
    a share that rounds to nothing was reported (k8s-device-plugin#1118: 16 % of 10). Those before
    Volta know no shares (MPS guide).
    """
    if percentage >= 100 or capability < VOLTA:
        return total
    share = int(total * percentage / 100 + 1e-9) // EVEN * EVEN
    return max(share, min(HOPPER_LEAST, total)) if capability == HOPPER else share


def context_bytes(multiprocessors: int) -> int:
    """GPU memory of a context that may use so many: 517 MiB at 132, 79 at 14 (measured, H100 and H200; of other GPUs an estimate)."""
    return int((CONTEXT_BASE_MIB + CONTEXT_MIB_PER_MULTIPROCESSOR * multiprocessors) * MIB)


def with_limit(asked: dict[str, str], device: str, size: str) -> dict[str, str]:
    """The limits with this one as the last that was set."""
    return {**{each: found for each, found in asked.items() if each != device}, device: size}


def limits(asked: dict[str, str], devices: list[str]) -> dict[str, int]:
    """Bytes by UUID. A device is named by its UUID, or by its number among those that are seen; who named it last counts."""
    found = {}
    for name, text in asked.items():
        named = (
            devices[int(name) : int(name) + 1]
            if name.isdigit()
            else [each for each in devices if each == name]
        )
        size = size_bytes(text)
        if size is not None:
            found.update(dict.fromkeys(named, size))
    return found


def lowest(*several: dict[str, int]) -> dict[str, int]:
    """Each device's lowest limit: a later one never raises an earlier one (MPS guide)."""
    found: dict[str, int] = {}
    for each in several:
        for device, size in each.items():
            found[device] = min(size, found.get(device, size))
    return found


def of_variable(text: str) -> dict[str, str]:
    """What CUDA_MPS_PINNED_DEVICE_MEM_LIMIT asks for: `0=1G,1=512MB`."""
    return {
        name.strip(): size.strip()
        for name, equals, size in (word.partition("=") for word in text.split(","))
        if equals
    }


def size_bytes(text: str) -> int | None:
    """`4G`, `512M`, `512MB`, and megabytes without a unit; None for anything else."""
    text = text.upper().removesuffix("B")
    unit = {"G": 1024 * MIB, "M": MIB}.get(text[-1:])
    number = text[:-1] if unit else text
    return int(number) * (unit or MIB) if number.isdigit() else None
