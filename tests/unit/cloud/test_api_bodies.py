"""Request bodies, resources as values, image references and label filters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.cloud.api.images import ImageRef, image_ref
from provision.cloud.api.labels import labels_filter
from provision.cloud.api.request_bodies import (
    check_spec,
    insert_body,
    scheduling_with_limit,
    standard_metadata,
)
from provision.cloud.api.resources import differences, vm_from_json
from provision.core.errors import SettingsError
from provision.core.model import Vm
from tests.specs import T4, vm_spec

SPEC = vm_spec(**T4, ttl_s=3600)


@pytest.mark.parametrize(
    ("image", "project", "ref"),
    [
        ("cos-125-lts", "", ImageRef("cos-cloud", "cos-125-lts", True)),
        ("cos-stable", "cos-cloud", ImageRef("cos-cloud", "cos-stable", True)),
        ("cos-125-19216-655-28", "cos-cloud", ImageRef("cos-cloud", "cos-125-19216-655-28", False)),
        (
            "cos-stable-129-19506-448-36",
            "",
            ImageRef("cos-cloud", "cos-stable-129-19506-448-36", False),
        ),
        ("mine", "my-project", ImageRef("my-project", "mine", False)),
        ("family/mine", "my-project", ImageRef("my-project", "mine", True)),
        ("projects/p/global/images/family/f", "", ImageRef("p", "f", True)),
        (
            "https://www.googleapis.com/compute/v1/projects/p/global/images/i",
            "x",
            ImageRef("p", "i", False),
        ),
    ],
)
def test_image_setting_is_parsed(image: str, project: str, ref: ImageRef) -> None:
    assert image_ref(image, project) == ref


@pytest.mark.parametrize("ref", [ImageRef("p", "n", True), ImageRef("p", "n", False)])
def test_image_path_parses_to_the_same_image(ref: ImageRef) -> None:
    assert image_ref(ref.path) == ref


def test_metadata_disables_updates_and_contains_the_key() -> None:
    items = standard_metadata(
        user="dev", public_key="ssh-ed25519 AAAA me@laptop\n", user_data="#cloud-config\n"
    )
    assert items == {
        "ssh-keys": "dev:ssh-ed25519 AAAA me@laptop",
        "cos-update-strategy": "update_disabled",
        "enable-guest-attributes": "TRUE",
        "enable-oslogin": "FALSE",  # a project that has it on would ignore ssh-keys
        "serial-port-logging-enable": "TRUE",
        "user-data": "#cloud-config\n",
    }
    assert "user-data" not in standard_metadata(user="dev", public_key="ssh-ed25519 AAAA")
    assert (
        standard_metadata(user="dev", public_key="ssh-ed25519 AAAA")["ssh-keys"]
        == "dev:ssh-ed25519 AAAA dev"
    )


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"name": "Dev"}, "name"),
        ({"name": "dev-"}, "name"),
        ({"name": "d" * 64}, "name"),
        ({"name": "dev\n"}, "name"),
        ({"name": "dev; rm -rf /"}, "name"),
        ({"ttl_s": 29}, "ttl"),
        ({"ttl_s": 120 * 86_400 + 1}, "ttl"),
        ({"labels": {"A": "b"}}, "labels"),
        ({"labels": {"a": "B"}}, "labels"),
        ({"metadata": {"a b": ""}}, "metadata"),
        ({"metadata": {"a": "x" * 262_145}}, "metadata"),
        ({"gpu_count": 3}, "gpu_count"),
    ],
)
def test_invalid_spec_raises_settings_error(changed: dict[str, Any], where: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_spec(replace(SPEC, **changed))
    assert caught.value.where == where


def test_spec_at_the_limits_is_valid() -> None:
    check_spec(replace(SPEC, name="d" * 63, ttl_s=30, disk_gb=50, metadata={"a": "x" * 262_144}))
    check_spec(replace(SPEC, ttl_s=None, gpu=None, gpu_count=0, disk_gb=10))


def test_vm_without_gpu_migrates_on_maintenance() -> None:
    body = insert_body(replace(SPEC, gpu=None, gpu_count=0, ttl_s=None), "z", source_image="i")
    assert body["scheduling"]["onHostMaintenance"] == "MIGRATE"
    assert "guestAccelerators" not in body


def test_insert_body_writes_sizes_as_strings() -> None:
    body = insert_body(SPEC, "z", source_image="i")
    assert body["disks"][0]["initializeParams"]["diskSizeGb"] == "200"
    assert body["scheduling"]["maxRunDuration"] == {"seconds": "3600"}


# --- what comes back ------------------------------------------------------------------------------

URL = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
RESOURCE: dict[str, Any] = {
    "id": "18446744073709551615",
    "name": "dev",
    "zone": URL,
    "status": "RUNNING",
    "machineType": f"{URL}/machineTypes/n1-standard-8",
    "guestAccelerators": [
        {"acceleratorType": f"{URL}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}
    ],
    "creationTimestamp": "2026-11-06T10:11:12.345-08:00",
    "lastStartTimestamp": "2026-11-07T01:02:03.456-08:00",
    "lastStopTimestamp": "2026-11-06T23:02:03.456-08:00",
    "scheduling": {
        "maxRunDuration": {"seconds": "3600"},
        "instanceTerminationAction": "DELETE",
        "provisioningModel": "SPOT",
    },
    "resourceStatus": {"scheduling": {"terminationTimestamp": "2026-11-07T02:02:03.456-08:00"}},
    "disks": [{"boot": True, "diskSizeGb": "200"}, {"diskSizeGb": "375", "type": "SCRATCH"}],
    "networkInterfaces": [{"networkIP": "10.0.0.2", "accessConfigs": [{"natIP": "203.0.113.9"}]}],
    "labels": {"provision-image": "cos-125-19216-655-28"},
    "metadata": {"fingerprint": "x", "items": [{"key": "a", "value": "b"}, {"key": "empty"}]},
    "aFieldOfNextYear": {"x": 1},
}


def test_instance_resource_becomes_a_vm() -> None:
    assert vm_from_json(RESOURCE) == Vm(
        name="dev",
        zone="us-central1-a",
        status="RUNNING",
        machine_type="n1-standard-8",
        gpu="nvidia-tesla-t4",
        gpu_count=2,
        address="203.0.113.9",
        internal_address="10.0.0.2",
        instance_id="18446744073709551615",
        created="2026-11-06T10:11:12.345-08:00",
        started="2026-11-07T01:02:03.456-08:00",
        stopped="2026-11-06T23:02:03.456-08:00",
        ttl_s=3600,
        stops_at="2026-11-07T02:02:03.456-08:00",
        termination_action="DELETE",
        provisioning_model="SPOT",
        disk_gb=200,
        image="cos-125-19216-655-28",
        labels={"provision-image": "cos-125-19216-655-28"},
        metadata={"a": "b", "empty": ""},
    )


def test_bundled_gpu_is_derived_from_the_machine_type() -> None:
    vm = vm_from_json({"name": "dev", "machineType": f"{URL}/machineTypes/g2-standard-24"})
    assert (vm.gpu, vm.gpu_count) == ("nvidia-l4", 2)


def test_instance_with_only_a_name_becomes_a_vm() -> None:
    vm = vm_from_json({"name": "dev"})
    assert (vm.status, vm.address, vm.gpu, vm.zone) == ("UNKNOWN", None, None, "")


def test_vm_without_external_ip_has_no_address() -> None:
    assert (
        vm_from_json(
            {
                "name": "dev",
                "networkInterfaces": [
                    {"networkIP": "10.0.0.2", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}
                ],
            }
        ).address
        is None
    )


@given(
    st.sampled_from(
        [
            "status",
            "labels",
            "metadata",
            "networkInterfaces",
            "guestAccelerators",
            "machineType",
            "zone",
            "id",
            "creationTimestamp",
        ]
    )
)
def test_instance_parser_accepts_any_missing_field_but_the_name(field: str) -> None:
    assert (
        vm_from_json({key: value for key, value in RESOURCE.items() if key != field}).name == "dev"
    )


def test_differences_list_what_only_a_new_vm_could_have() -> None:
    vm = replace(vm_from_json(RESOURCE), provisioning_model="STANDARD")
    assert differences(replace(SPEC, gpu="t4", gpu_count=2), vm) == {}
    assert differences(replace(SPEC, gpu_count=2, provisioning_model="SPOT"), vm) == {
        "provisioning": ("STANDARD", "SPOT")
    }
    assert differences(replace(SPEC, machine_type="n1-standard-16"), vm) == {
        "machine_type": ("n1-standard-8", "n1-standard-16"),
        "gpu_count": (2, 1),
    }
    assert differences(replace(SPEC, gpu=None, gpu_count=0), vm)["gpu"] == ("nvidia-tesla-t4", None)


def test_labels_filter_joins_all_labels() -> None:
    assert labels_filter({}) == ""
    assert labels_filter({"a": "*"}) == "(labels.a:*)"
    assert labels_filter({"b": "2", "a": "1"}) == '(labels.a="1") AND (labels.b="2")'


def test_new_time_limit_keeps_other_scheduling_fields() -> None:
    read = {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "3600"},
    }
    assert scheduling_with_limit(read, 7200) == {**read, "maxRunDuration": {"seconds": "7200"}}
    assert scheduling_with_limit(
        {"terminationTime": "2026-11-21T12:00:00Z", "automaticRestart": True}, 60
    ) == {
        "instanceTerminationAction": "STOP",
        "automaticRestart": True,
        "maxRunDuration": {"seconds": "60"},
    }
