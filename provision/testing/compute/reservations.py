"""`reservations` resources, as far as an instance's affinity to one needs them. Pure.

Source: Compute Engine, "Consume a reserved zonal resource": a specific reservation is named by the
key compute.googleapis.com/reservation-name and has to match machine type and accelerators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.cloud.api.resources import last_segment
from provision.testing.compute.catalogue import Links
from provision.testing.compute.errors import Json, OperationFailure, invalid, invalid_field
from provision.testing.compute.instance_resource import ResourceRef

COLLECTION = "reservations"
KEY = "compute.googleapis.com/reservation-name"


def new_reservation(
    body: Mapping[str, Any], *, links: Links, ref: ResourceRef, reservation_id: str, created: str
) -> Json:
    """A new reservation from a request's body. Raises `ApiError` 400 for an invalid one."""
    specific = dict(body.get("specificReservation", {}))
    if (
        not specific.get("instanceProperties", {}).get("machineType")
        or int(specific.get("count", 0)) < 1
    ):
        raise invalid_field(
            "specificReservation", "", "A machine type and a count of at least 1 are required."
        )
    return {
        "kind": "compute#reservation",
        "id": reservation_id,
        "creationTimestamp": created,
        "name": ref.name,
        "zone": links.full(f"projects/{ref.project}/zones/{ref.zone}"),
        "selfLink": links.full(ref.path),
        "status": "READY",
        "specificReservationRequired": bool(body.get("specificReservationRequired", False)),
        "specificReservation": {**specific, "count": str(specific["count"]), "inUseCount": "0"},
    }


def specific_name(body: Mapping[str, Any]) -> str | None:
    """The name of the reservation that an instance requires, or None.

    Raises `ApiError` 400 for a malformed affinity.
    """
    affinity = body.get("reservationAffinity", {})
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        return None
    values = affinity.get("values", ())
    if affinity.get("key") != KEY or len(values) != 1:
        raise invalid(f"A specific reservation is named by the key {KEY} and one value.")
    return last_segment(values[0])


def shortage(
    reservation: Mapping[str, Any], instance: Mapping[str, Any]
) -> OperationFailure | None:
    """Why an instance cannot run on this reservation; None: it can."""
    specific = reservation["specificReservation"]
    properties = specific["instanceProperties"]
    name, machine_type = reservation["name"], last_segment(instance["machineType"])
    accelerators = sorted(
        (last_segment(g["acceleratorType"]), g["acceleratorCount"])
        for g in properties.get("guestAccelerators", ())
    )
    asked = sorted(
        (last_segment(g["acceleratorType"]), g["acceleratorCount"])
        for g in instance.get("guestAccelerators", ())
    )
    if last_segment(properties["machineType"]) != machine_type or (
        accelerators and accelerators != asked
    ):
        message = f"The instance does not match the properties of the reservation '{name}'."
        return OperationFailure(code="INVALID_USAGE", message=message, http_status=400)
    if int(specific["inUseCount"]) >= int(specific["count"]):
        message = (
            f"Specified reservation '{name}' does not have available resources for the request."
        )
        return OperationFailure(
            code="RESERVATION_CAPACITY_EXCEEDED", message=message, http_status=400
        )
    return None
