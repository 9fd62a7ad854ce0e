"""Public test tools: mock hosts, the Compute Engine emulator, and a pytest plugin with fixtures.

Each name is imported when it is first used, because every run of pytest imports this package for
the plugin.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provision.testing.compute import ComputeEmulator
    from provision.testing.convergence import converge
    from provision.testing.host.processes import MockHostError
    from provision.testing.host_faults import Faults, Stats
    from provision.testing.mock_cloud import MockCloud
    from provision.testing.mock_host import MockHost, Result
    from provision.testing.network import Network

_MODULE_OF = {
    "ComputeEmulator": "provision.testing.compute",
    "Faults": "provision.testing.host_faults",
    "MockCloud": "provision.testing.mock_cloud",
    "MockHost": "provision.testing.mock_host",
    "MockHostError": "provision.testing.host.processes",
    "Network": "provision.testing.network",
    "Result": "provision.testing.mock_host",
    "Stats": "provision.testing.host_faults",
    "converge": "provision.testing.convergence",
}

__all__ = [
    "ComputeEmulator",
    "Faults",
    "MockCloud",
    "MockHost",
    "MockHostError",
    "Network",
    "Result",
    "Stats",
    "converge",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
