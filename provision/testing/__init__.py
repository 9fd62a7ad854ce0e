"""Public test tools: mock hosts, the Compute Engine emulator, and the pytest plugin that offers both as fixtures."""

from provision.testing.faults import Faults, Stats
from provision.testing.mock_host import MockHost, Result
from provision.testing.processes import MockHostError

__all__ = ["Faults", "MockHost", "MockHostError", "Result", "Stats"]
