"""Provisioning models and time limits: request fields, and combinations that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.cloud.api.request_bodies import check_spec, insert_body
from provision.cloud.market import catalog, scheduling
from provision.core.errors import SettingsError
from tests.specs import vm_spec

SPEC = vm_spec(ttl_s=3600, labels={})
HOUR = {"seconds": "3600"}


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        (
            {},
            {
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": True,
                "provisioningModel": "STANDARD",
                "maxRunDuration": HOUR,
                "instanceTerminationAction": "STOP",
            },
        ),
        (
            {"ttl_s": None},
            {
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": True,
                "provisioningModel": "STANDARD",
            },
        ),
        (
            {"gpu": None, "gpu_count": 0, "machine_type": "n1-standard-8", "ttl_s": None},
            {
                "onHostMaintenance": "MIGRATE",
                "automaticRestart": True,
                "provisioningModel": "STANDARD",
            },
        ),
        (
            {
                "gpu": None,
                "gpu_count": 0,
                "machine_type": "n1-standard-8",
                "ttl_s": None,
                "provisioning_model": "SPOT",
            },
            {
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": False,
                "provisioningModel": "SPOT",
                "instanceTerminationAction": "STOP",
            },
        ),
        (
            {"provisioning_model": "SPOT", "termination_action": "DELETE"},
            {
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": False,
                "provisioningModel": "SPOT",
                "maxRunDuration": HOUR,
                "instanceTerminationAction": "DELETE",
            },
        ),
        (
            {"provisioning_model": "FLEX_START", "request_valid_s": 600},
            {
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": False,
                "provisioningModel": "FLEX_START",
                "maxRunDuration": HOUR,
                "instanceTerminationAction": "STOP",
            },
        ),
    ],
)
def test_scheduling_field_for_each_provisioning_model(
    changed: dict[str, Any], wanted: dict[str, Any]
) -> None:
    spec = replace(SPEC, **changed)
    check_spec(spec)
    assert insert_body(spec, "us-central1-a", source_image="i")["scheduling"] == wanted


def test_capacity_fields_for_reservation_and_flex_start() -> None:
    def sent(**changed: Any) -> tuple[Any, Any]:
        spec = replace(SPEC, **changed)
        check_spec(spec)
        body = insert_body(spec, "us-central1-a", source_image="i")
        return body.get("reservationAffinity"), body.get("params")

    named = {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["mine"],
    }
    assert sent() == (None, None)
    assert sent(reservation="mine") == (named, None)
    waiting = {"requestValidForDuration": {"seconds": "600"}}
    assert sent(provisioning_model="FLEX_START", request_valid_s=600) == (
        {"consumeReservationType": "NO_RESERVATION"},
        waiting,
    )


@pytest.mark.parametrize(
    ("provisioning", "reservation", "machine", "model"),
    [
        ("standard", None, "g2-standard-8", "STANDARD"),
        ("spot", None, "g2-standard-8", "SPOT"),
        ("flex-start", None, "g2-standard-8", "FLEX_START"),
        ("standard", "mine", "g2-standard-8", "STANDARD"),
        ("standard", "mine", "a4-highgpu-8g", "RESERVATION_BOUND"),
        ("standard", None, "a4-highgpu-8g", "STANDARD"),
    ],
)
def test_provisioning_setting_becomes_the_api_model(
    provisioning: str, reservation: str | None, machine: str, model: str
) -> None:
    assert scheduling.provisioning_model(provisioning, reservation, machine) == model


FLEX = {"provisioning_model": "FLEX_START"}


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"ttl_s": 29}, "ttl"),
        ({"ttl_s": None, "termination_action": "DELETE"}, "ttl_action"),
        ({"request_valid_s": 600}, "capacity_wait"),
        ({"provisioning_model": "SPOT", "request_valid_s": 600}, "capacity_wait"),
        ({"provisioning_model": "SPOT", "reservation": "mine"}, "reservation"),
        ({**FLEX, "reservation": "mine"}, "reservation"),
        ({**FLEX, "ttl_s": None}, "ttl"),
        ({**FLEX, "ttl_s": 7 * 86_400 + 1}, "ttl"),
        ({**FLEX, "request_valid_s": 89}, "capacity_wait"),
        ({**FLEX, "request_valid_s": 7201}, "capacity_wait"),
        ({**FLEX, "gpu": "nvidia-tesla-t4", "machine_type": "n1-standard-8"}, "provisioning"),
        ({**FLEX, "gpu": "nvidia-rtx-pro-6000", "machine_type": "g4-standard-48"}, "provisioning"),
        ({"gpu": "nvidia-h100-80gb", "machine_type": "a3-highgpu-1g"}, "machine_type"),
    ],
)
def test_invalid_scheduling_raises_settings_error(changed: dict[str, Any], where: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_spec(replace(SPEC, **changed))
    assert caught.value.where == where
    assert caught.value.fix


def test_spot_only_and_flex_start_specs_are_valid() -> None:
    check_spec(
        replace(
            SPEC, gpu="nvidia-h100-80gb", machine_type="a3-highgpu-1g", provisioning_model="SPOT"
        )
    )
    check_spec(replace(SPEC, **FLEX, ttl_s=7 * 86_400, request_valid_s=7200))  # type: ignore[arg-type]
    assert catalog.bundled_machine_types()["a3-highgpu-1g"][1].provisioning == (
        "SPOT",
        "FLEX_START",
    )
    assert scheduling.capacity_wait_s("FLEX_START", None) == 600
    assert (
        scheduling.capacity_wait_s("FLEX_START", 90),
        scheduling.capacity_wait_s("SPOT", 90),
    ) == (90, None)
