"""What a client gets of the GPU under MPS."""

from __future__ import annotations

VOLTA = (7, 0)
HOPPER = (9, 0)
HOPPER_LEAST = 8
EVEN = 2


def multiprocessors(total: int, percentage: float, capability: tuple[int, int]) -> int:
    """Those of `total` that a client may use; 0 where the share rounds to nothing.

    Measured on H100 and H200: rounded down to an even number, and to no less than 8. Of other GPUs a share that rounds to
    nothing was reported (k8s-device-plugin#1118: 16 % of 10). Those before Volta know no shares (MPS guide).
    """
    if percentage >= 100 or capability < VOLTA:
        return total
    share = int(total * percentage / 100 + 1e-9) // EVEN * EVEN
    return max(share, min(HOPPER_LEAST, total)) if capability == HOPPER else share
