"""How a VM is scheduled: standard, Spot or flex-start, reservations, time limit. Pure.

Rules: Compute Engine, "Spot VMs", "Limit the run time of a VM", "About Flex-start VMs", "Consume
reservations", "Handle GPU host maintenance events"; field names: API v1, `instances`.
"""

from __future__ import annotations

from typing import Any

from provision.cloud.market import catalog
from provision.core.errors import SettingsError
from provision.core.model import VmSpec

STANDARD = "STANDARD"
SPOT = "SPOT"
FLEX_START = "FLEX_START"
RESERVATION_BOUND = "RESERVATION_BOUND"
STOP, DELETE = "STOP", "DELETE"
RESERVATION_KEY = "compute.googleapis.com/reservation-name"
MIN_TTL_S, MAX_TTL_S = 30, 120 * 86_400
FLEX_MAX_TTL_S = 7 * 86_400
FLEX_MIN_WAIT_S, FLEX_MAX_WAIT_S = 90, 2 * 3600
FLEX_DEFAULT_WAIT_S = 600
"""Default time to wait for capacity in one zone before the next zone is asked."""


def provisioning_model(provisioning: str, reservation: str | None, machine_type: str) -> str:
    """Return the API's provisioning model for the setting `provisioning`.

    A standard machine that is available from reservations only is RESERVATION_BOUND.
    """
    model = provisioning.replace("-", "_").upper()
    bundled = catalog.bundled_machine_types().get(machine_type)
    models = bundled[1].provisioning if bundled else ()
    is_bound = model == STANDARD and reservation and RESERVATION_BOUND in models
    return RESERVATION_BOUND if is_bound else model


def capacity_wait_s(model: str, wait_s: int | None) -> int | None:
    """Return how long a flex-start VM waits for capacity, in seconds; None for another model."""
    return (wait_s or FLEX_DEFAULT_WAIT_S) if model == FLEX_START else None


def check(
    *,
    model: str,
    machine_type: str,
    ttl_s: int | None,
    action: str,
    wait_s: int | None,
    reservation: str | None,
) -> None:
    """Raise `SettingsError`, which names the key, for a combination that cannot work.

    That is one that Compute Engine would refuse, or that would not have the effect it asks for.
    """
    if ttl_s is not None and not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        what = f"a time to live of {ttl_s} s is not possible"
        raise _impossible("ttl", what, "30 seconds to 120 days", "set ttl: 8h")
    if wait_s is not None and model != FLEX_START:
        raise _impossible(
            "capacity_wait",
            "nothing waits",
            "only a flex-start VM waits for capacity",
            "set provisioning: flex-start, or remove capacity_wait",
        )
    if reservation is not None and model in (SPOT, FLEX_START):
        raise _impossible(
            "reservation",
            "it cannot be used",
            "Spot and flex-start VMs take no capacity from reservations",
            "set provisioning: standard, or remove reservation",
        )
    if action == DELETE and ttl_s is None and model == STANDARD:
        raise _impossible(
            "ttl_action",
            "nothing would be deleted",
            "a standard VM without a time to live is never ended by the cloud",
            "set ttl: 8h, or ttl_action: stop",
        )
    if model == FLEX_START:
        _check_flex_start(machine_type, ttl_s, wait_s)


def check_spec(spec: VmSpec) -> None:
    """`check` the scheduling of a spec."""
    check(
        model=spec.provisioning_model,
        machine_type=spec.machine_type,
        ttl_s=spec.ttl_s,
        action=spec.termination_action,
        wait_s=spec.request_valid_s,
        reservation=spec.reservation,
    )


def _check_flex_start(machine_type: str, ttl_s: int | None, wait_s: int | None) -> None:
    if ttl_s is None or ttl_s > FLEX_MAX_TTL_S:
        raise _impossible(
            "ttl",
            "a flex-start VM needs a time to live",
            "it runs for at most seven days",
            "set ttl: 7d, or less",
        )
    if wait_s is not None and not FLEX_MIN_WAIT_S <= wait_s <= FLEX_MAX_WAIT_S:
        what = f"a wait of {wait_s} s is not possible"
        why = "capacity is waited for from 90 seconds to 2 hours"
        raise _impossible("capacity_wait", what, why, "set capacity_wait: 10m")
    bundled = catalog.bundled_machine_types().get(machine_type)
    if bundled is None or bundled[1].series in ("g4", "a4x"):
        what = f"{machine_type} cannot be had as flex-start"
        why = "flex-start is offered for accelerator-optimized machine types, A4X and G4 excepted"
        raise _impossible("provisioning", what, why, "set provisioning: spot")


def _impossible(key: str, what: str, why: str, fix: str) -> SettingsError:
    return SettingsError(what, where=key, why=why, fix=fix)


def scheduling_field(spec: VmSpec) -> dict[str, Any]:
    """Return the whole field `scheduling` of the instance.

    It is built in one place since a partial update elsewhere would reset onHostMaintenance.
    """
    is_plain = spec.provisioning_model in (STANDARD, RESERVATION_BOUND)
    fields: dict[str, Any] = {
        "onHostMaintenance": "MIGRATE" if is_plain and spec.gpu is None else "TERMINATE",
        "automaticRestart": is_plain,
        "provisioningModel": spec.provisioning_model,
    }
    if spec.ttl_s is not None:
        fields["maxRunDuration"] = {"seconds": str(spec.ttl_s)}
    if spec.ttl_s is not None or not is_plain:
        fields["instanceTerminationAction"] = spec.termination_action
    return fields


def capacity_fields(spec: VmSpec) -> dict[str, Any]:
    """Return the instance's fields about its capacity: reservation, and how long it may wait."""
    fields: dict[str, Any] = {}
    if spec.reservation is not None:
        fields["reservationAffinity"] = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": RESERVATION_KEY,
            "values": [spec.reservation],
        }
    elif spec.provisioning_model == FLEX_START:
        fields["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    if spec.request_valid_s is not None:
        fields["params"] = {"requestValidForDuration": {"seconds": str(spec.request_valid_s)}}
    return fields
