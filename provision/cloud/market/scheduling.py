"""How a VM is scheduled: bought as standard, Spot or flex-start, from a reservation, for a limited time. Pure.

Rules: Compute Engine, "Spot VMs", "Limit the run time of a VM", "About Flex-start VMs", "Consume
reservations", "Handle GPU host maintenance events"; field names: API v1, `instances`
(facts/cos_gce.md §5.1).
"""

from __future__ import annotations

from typing import Any

from provision.cloud.market import catalog
from provision.core.errors import SettingsError
from provision.core.model import VmSpec

STANDARD, SPOT, FLEX_START, RESERVATION_BOUND = (
    "STANDARD",
    "SPOT",
    "FLEX_START",
    "RESERVATION_BOUND",
)
STOP, DELETE = "STOP", "DELETE"
RESERVATION_KEY = "compute.googleapis.com/reservation-name"
MIN_TTL_S, MAX_TTL_S = 30, 120 * 86_400
FLEX_MAX_TTL_S = 7 * 86_400
FLEX_MIN_WAIT_S, FLEX_MAX_WAIT_S = 90, 2 * 3600
FLEX_DEFAULT_WAIT_S = 600
"""How long capacity is waited for in one zone, unless the settings say otherwise, before the next
zone is asked."""


def model_for(provisioning: str, reservation: str | None, machine_type: str) -> str:
    """The API's provisioning model for the setting; a machine that can be had from reservations alone is bound to one."""
    model = provisioning.replace("-", "_").upper()
    bundled = catalog.bundled_machine_types().get(machine_type)
    only = bundled[1].provisioning if bundled else ()
    return (
        RESERVATION_BOUND
        if model == STANDARD and reservation and RESERVATION_BOUND in only
        else model
    )


def wait_for(model: str, wait_s: int | None) -> int | None:
    """How long a zone may look for capacity: for a flex-start VM what was said, or the default; other VMs wait for none."""
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
    """Refuse a combination that Compute Engine would refuse, or that would not do what it says; SettingsError names the key."""
    if ttl_s is not None and not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        raise _impossible(
            "ttl",
            f"a time to live of {ttl_s} s is not possible",
            "30 seconds to 120 days",
            "set ttl: 8h",
        )
    if wait_s is not None and model != FLEX_START:
        why = "only a flex-start VM waits for capacity"
        raise _impossible(
            "capacity_wait",
            "nothing waits",
            why,
            "set provisioning: flex-start, or remove capacity_wait",
        )
    if reservation is not None and model in (SPOT, FLEX_START):
        why = "Spot and flex-start VMs take no capacity from reservations"
        raise _impossible(
            "reservation",
            "it cannot be used",
            why,
            "set provisioning: standard, or remove reservation",
        )
    if action == DELETE and ttl_s is None and model == STANDARD:
        why = "a standard VM without a time to live is never ended by the cloud"
        raise _impossible(
            "ttl_action", "nothing would be deleted", why, "set ttl: 8h, or ttl_action: stop"
        )
    if model == FLEX_START:
        _check_flex_start(machine_type, ttl_s, wait_s)


def check_spec(spec: VmSpec) -> None:
    """`check` for what is about to be asked for."""
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
        why = "capacity is waited for from 90 seconds to 2 hours"
        raise _impossible(
            "capacity_wait", f"a wait of {wait_s} s is not possible", why, "set capacity_wait: 10m"
        )
    bundled = catalog.bundled_machine_types().get(machine_type)
    if bundled is None or bundled[1].series in ("g4", "a4x"):
        why = "flex-start is offered for accelerator-optimized machine types, A4X and G4 excepted"
        raise _impossible(
            "provisioning",
            f"{machine_type} cannot be had as flex-start",
            why,
            "set provisioning: spot",
        )


def _impossible(key: str, what: str, why: str, fix: str) -> SettingsError:
    return SettingsError(what, where=key, why=why, fix=fix)


def scheduling(spec: VmSpec) -> dict[str, Any]:
    """The field `scheduling`, built once and whole: a launcher that set its parts one by one lost onHostMaintenance."""
    is_plain = spec.provisioning_model in (STANDARD, RESERVATION_BOUND)
    built: dict[str, Any] = {
        "onHostMaintenance": "MIGRATE" if is_plain and spec.gpu is None else "TERMINATE",
        "automaticRestart": is_plain,
        "provisioningModel": spec.provisioning_model,
    }
    if spec.ttl_s is not None:
        built["maxRunDuration"] = {"seconds": str(spec.ttl_s)}
    if spec.ttl_s is not None or not is_plain:
        built["instanceTerminationAction"] = spec.termination_action
    return built


def beside(spec: VmSpec) -> dict[str, Any]:
    """The fields of the instance beside `scheduling`: where its capacity comes from, and how long it is waited for."""
    fields: dict[str, Any] = {}
    if spec.reservation is not None:
        affinity = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": RESERVATION_KEY,
            "values": [spec.reservation],
        }
        fields["reservationAffinity"] = affinity
    elif spec.provisioning_model == FLEX_START:
        fields["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    if spec.request_valid_s is not None:
        fields["params"] = {"requestValidForDuration": {"seconds": str(spec.request_valid_s)}}
    return fields
