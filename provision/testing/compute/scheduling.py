"""Scheduling options of an instance: checks, defaults, and the end of the run time. Pure.

Sources: Compute Engine, "Limit the run time of a VM" (30 seconds to 120 days; the time begins anew
with each start), "Spot VMs", "About Flex-start VMs", "GPU machine types"; messages as users of
other launchers quote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from provision.cloud.market.catalog import MachineType
from provision.cloud.market.scheduling import MAX_TTL_S, MIN_TTL_S
from provision.testing.compute.errors import Json, invalid, invalid_field

MODELS = ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")
ACTIONS = ("STOP", "DELETE")
FLEX_MAX_S = 7 * 86_400
"""Flex-start VMs run for at most a week."""
FLEX_WAIT_S = (90, 7200)
"""How long a Flex-start request may wait for capacity; 0: not at all."""


def check(body: Mapping[str, Any], machine_type: MachineType, *, has_gpu: bool, now: float) -> None:
    """Raise `ApiError` 400 for scheduling options that contradict one another or `machine_type`."""
    scheduling = body.get("scheduling", {})
    model = scheduling.get("provisioningModel") or (
        "SPOT" if scheduling.get("preemptible") else "STANDARD"
    )
    if model not in MODELS:
        raise invalid_field(
            "scheduling.provisioningModel", model, f"Must be one of {', '.join(MODELS)}."
        )
    if has_gpu and scheduling.get("onHostMaintenance", "MIGRATE") != "TERMINATE":
        raise invalid("Instances with guest accelerators do not support live migration.")
    if model == "SPOT" and scheduling.get("automaticRestart", True):
        raise invalid(
            "Scheduling option automaticRestart must be false when the provisioning model is SPOT."
        )
    _check_limit(scheduling, model, now)
    if (
        model == "RESERVATION_BOUND"
        and body.get("reservationAffinity", {}).get("consumeReservationType")
        != "SPECIFIC_RESERVATION"
    ):
        raise invalid("The provisioning model RESERVATION_BOUND requires a specific reservation.")
    if model == "FLEX_START":
        _check_flex_start(body, scheduling, machine_type)
    if machine_type.provisioning and model not in machine_type.provisioning:
        models = ", ".join(machine_type.provisioning)
        raise invalid(
            f"Machine type {machine_type.name} requires one of the provisioning models {models}."
        )


def _check_limit(scheduling: Mapping[str, Any], model: str, now: float) -> None:
    limited = "maxRunDuration" in scheduling or "terminationTime" in scheduling
    action = scheduling.get("instanceTerminationAction")
    if action is not None and action not in ACTIONS:
        raise invalid_field(
            "scheduling.instanceTerminationAction", action, f"Must be one of {', '.join(ACTIONS)}."
        )
    if action and not (limited or model == "SPOT"):
        raise invalid(
            "You can specify instanceTerminationAction only for Spot VMs"
            " or VMs with a limited run time."
        )
    if limited and not action:
        raise invalid("instanceTerminationAction must be specified when the run time is limited.")
    if "maxRunDuration" in scheduling and "terminationTime" in scheduling:
        raise invalid("Only one of maxRunDuration and terminationTime can be specified.")
    seconds = scheduling.get("maxRunDuration", {}).get("seconds")
    if seconds is not None and not MIN_TTL_S <= int(seconds) <= MAX_TTL_S:
        raise invalid_field(
            "scheduling.maxRunDuration", seconds, "Must be between 30 seconds and 120 days."
        )
    until = scheduling.get("terminationTime")
    if until is not None and not MIN_TTL_S <= _timestamp(until) - now <= MAX_TTL_S:
        raise invalid_field(
            "scheduling.terminationTime",
            until,
            "Must be between 30 seconds and 120 days in the future.",
        )


def _check_flex_start(
    body: Mapping[str, Any], scheduling: Mapping[str, Any], machine_type: MachineType
) -> None:
    if machine_type.gpu_count == 0 or machine_type.series in {"a4x", "g4"}:
        raise invalid(
            f"Machine type {machine_type.name} cannot be used"
            " with the provisioning model FLEX_START."
        )
    seconds = scheduling.get("maxRunDuration", {}).get("seconds")
    if seconds is None or int(seconds) > FLEX_MAX_S:
        raise invalid("Flex-start VMs require a maxRunDuration of at most 7 days.")
    if scheduling.get("automaticRestart", True):
        raise invalid(
            "Scheduling option automaticRestart must be false"
            " when the provisioning model is FLEX_START."
        )
    wait_s = int(body.get("params", {}).get("requestValidForDuration", {}).get("seconds", 0))
    if wait_s and not FLEX_WAIT_S[0] <= wait_s <= FLEX_WAIT_S[1]:
        raise invalid_field(
            "params.requestValidForDuration",
            wait_s,
            "Must be 0, or between 90 seconds and 2 hours.",
        )
    if (
        body.get("reservationAffinity", {}).get("consumeReservationType", "NO_RESERVATION")
        == "SPECIFIC_RESERVATION"
    ):
        raise invalid("Flex-start VMs do not consume reservations.")


def with_defaults(asked: Mapping[str, Any]) -> Json:
    """The options as the API shows them: those asked for, and the defaults of the others."""
    model = asked.get("provisioningModel") or ("SPOT" if asked.get("preemptible") else "STANDARD")
    shown: Json = {
        "onHostMaintenance": "MIGRATE",
        "automaticRestart": True,
        **asked,
        "provisioningModel": model,
        "preemptible": model == "SPOT",
    }
    return (
        {**shown, "instanceTerminationAction": asked.get("instanceTerminationAction", "STOP")}
        if model == "SPOT"
        else shown
    )


def ends_at(scheduling: Mapping[str, Any], started: float) -> float | None:
    """When the run time ends of an instance that starts at `started`; None: never.

    Times are in seconds since the epoch.
    """
    seconds = scheduling.get("maxRunDuration", {}).get("seconds")
    if seconds is not None:
        return started + int(seconds)
    until = scheduling.get("terminationTime")
    return None if until is None else _timestamp(until)


def _timestamp(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise invalid_field(
            "scheduling.terminationTime", text, "Must be a valid RFC 3339 timestamp."
        )
    return moment.timestamp()
