"""The status words of a VM, grouped by what can be done next. Pure.

Source: Compute Engine, "Instance life cycle".
"""

from __future__ import annotations

STOPPED_STATES = frozenset({"TERMINATED", "STOPPED"})
"""The VM does not run and can be started."""
PENDING = "PENDING"
"""The VM waits for capacity (flex-start)."""
STOPPING_STATES = frozenset({"STOPPING", "PENDING_STOP"})
"""The VM is being stopped; Compute Engine refuses to start it until it has stopped."""
TRANSITIONAL_STATES = STOPPING_STATES | {
    PENDING,
    "PROVISIONING",
    "STAGING",
    "SUSPENDING",
    "REPAIRING",
    "DEPROVISIONING",
}
"""The status changes without a request."""
