"""GPU and machine types, default machine types, and the rules for shapes and drivers."""

from __future__ import annotations

import re

import pytest

from provision.cloud.market.catalog import (
    bundled_machine_types,
    gpu_type,
    gpu_types,
    n1_predefined,
    parse_n1,
)
from provision.cloud.market.machine_choice import choose_machine_type, default_disk_type
from provision.cloud.market.shape_rules import (
    check_driver,
    check_shape,
    check_supported,
    driver_branch,
)
from provision.core.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nvidia-l4", "nvidia-l4"),
        ("L4", "nvidia-l4"),
        ("t4", "nvidia-tesla-t4"),
        ("a100", "nvidia-tesla-a100"),
        ("nvidia-a100-40gb", "nvidia-tesla-a100"),
        ("a100-80gb", "nvidia-a100-80gb"),
        ("h100", "nvidia-h100-80gb"),
        ("h200", "nvidia-h200-141gb"),
        ("nvidia-rtx-pro-6000", "nvidia-rtx-pro-6000"),
    ],
)
def test_gpu_type_is_found_by_api_name_and_short_name(name: str, found: str) -> None:
    assert gpu_type(name).accelerator == found


def test_unknown_gpu_error_lists_known_types() -> None:
    with pytest.raises(SettingsError, match="unknown GPU type 'l5'") as caught:
        gpu_type("l5")
    assert "nvidia-l4" in caught.value.why


@pytest.mark.parametrize(
    ("gpu", "count", "requested", "machine"),
    [
        (None, 0, None, "n1-standard-8"),
        ("nvidia-tesla-t4", 1, None, "n1-standard-8"),
        ("nvidia-tesla-v100", 8, None, "n1-standard-64"),
        ("l4", 1, None, "g2-standard-8"),
        ("l4", 2, None, "g2-standard-24"),
        ("a100", 16, None, "a2-megagpu-16g"),
        ("rtx-pro-6000", 1, None, "g4-standard-48"),
        ("l4", 1, "g2-standard-32", "g2-standard-32"),
    ],
)
def test_default_machine_type_for_gpu_and_count(
    gpu: str | None, count: int, requested: str | None, machine: str
) -> None:
    assert choose_machine_type(gpu, count, requested) == machine


def test_machine_type_setting_overrides_the_dataflow_job() -> None:
    assert choose_machine_type("l4", 1, None, "g2-standard-4") == "g2-standard-4"
    assert choose_machine_type("l4", 1, "g2-standard-16", "g2-standard-4") == "g2-standard-16"


@pytest.mark.parametrize(
    ("gpu", "why", "fix"),
    [
        ("gh200", "its host is Arm", "nvidia-l4"),
        ("nvidia-gh200", "its host is Arm", "nvidia-l4"),
        ("l4-vws", "a licence for graphics", "set gpu: nvidia-l4"),
        ("nvidia-tesla-t4-vws", "a licence for graphics", "set gpu: nvidia-tesla-t4"),
        ("a9000", "known types: ", ""),
    ],
)
def test_unsupported_gpu_is_refused_with_the_reason(gpu: str, why: str, fix: str) -> None:
    with pytest.raises(SettingsError) as caught:
        gpu_type(gpu)
    assert why in caught.value.why
    assert fix in caught.value.fix


@pytest.mark.parametrize("gpu", ["gb200", "gb300"])
def test_arm_gpu_is_refused_before_its_count_is_checked(gpu: str) -> None:
    with pytest.raises(SettingsError, match="cannot be used here") as caught:
        check_supported(gpu)
    assert "Arm" in caught.value.why
    check_supported("l4")
    check_supported(None)


STANDARD = [
    (gpu.accelerator, count)
    for gpu in gpu_types().values()
    for count in gpu.counts
    if gpu.cos_supported
    and not all(
        machine.provisioning
        for machine in gpu.machine_types
        if machine.gpu_count == count and gpu.bundled
    )
]


@pytest.mark.parametrize(("gpu", "count"), STANDARD)
def test_default_machine_type_passes_the_shape_check(gpu: str, count: int) -> None:
    check_shape(gpu, count, choose_machine_type(gpu, count, None), 50)


@pytest.mark.parametrize(
    ("shape", "where", "why"),
    [
        (("t4", 3, "n1-standard-8", 200), "gpu_count", "allowed: 1, 2, 4"),
        (("t4", 0, "n1-standard-8", 200), "gpu_count", "allowed: 1, 2, 4"),
        (
            ("t4", 1, "n1-standard-64", 200),
            "machine_type",
            "n1-standard-64 has 64 vCPUs and 240 GB; .*at most 48 vCPUs and 312 GB",
        ),
        (("v100", 1, "n1-highmem-16", 200), "machine_type", "at most 12 vCPUs and 78 GB"),
        (("t4", 1, "g2-standard-8", 200), "machine_type", "attached to an N1 machine"),
        (("t4", 1, "f1-micro", 200), "machine_type", "shared-core types take no GPU"),
        (("t4", 1, "n1-standard-3", 200), "machine_type", "attached to an N1 machine"),
        (
            ("l4", 1, "n1-standard-8", 200),
            "machine_type",
            "comes with: g2-standard-4, .*g2-standard-32",
        ),
        (("l4", 2, "g2-standard-8", 200), "machine_type", "comes with: g2-standard-24"),
        (("rtx-pro-6000", 1, "g4-standard-12", 200), "machine_type", "1/4 of a GPU"),
        (("gb200", 4, "a4x-highgpu-4g", 200), "gpu", "Arm host"),
        (("h100", 1, "a3-highgpu-1g", 200), "machine_type", "only as: SPOT, FLEX_START"),
        (("b200", 8, "a4-highgpu-8g", 200), "machine_type", "only as: SPOT"),
        (("t4", 1, "n1-standard-8", 49), "disk_gb", "do not fit into less; at least 50 GB"),
        ((None, 0, "n1-standard-8", 9), "disk_gb", "at least 10 GB"),
        ((None, 1, "n1-standard-8", 200), "gpu_count", "gpu is not set"),
        ((None, 0, "g2-standard-8", 200), "machine_type", "brings 1 x nvidia-l4"),
    ],
)
def test_invalid_shape_error_says_what_is_allowed(
    shape: tuple[str | None, int, str, int], where: str, why: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        check_shape(*shape)
    assert caught.value.where == where
    assert re.search(why, caught.value.why)
    assert caught.value.fix


def test_spot_only_machine_type_is_valid_as_spot() -> None:
    check_shape("h100", 1, "a3-highgpu-1g", 200, provisioning="SPOT")


def test_four_p100_have_a_lower_limit_in_some_zones() -> None:
    check_shape("p100", 4, "n1-standard-96", 200, zone="us-central1-c")
    with pytest.raises(SettingsError, match="too large"):
        check_shape("p100", 4, "n1-standard-96", 200, zone="us-east1-c")


@pytest.mark.parametrize(
    ("machine", "disk"),
    [
        ("n1-standard-8", "pd-balanced"),
        ("g2-standard-8", "pd-balanced"),
        ("a3-highgpu-8g", "pd-balanced"),
        ("a3-ultragpu-8g", "hyperdisk-balanced"),
        ("a4-highgpu-8g", "hyperdisk-balanced"),
        ("g4-standard-48", "hyperdisk-balanced"),
    ],
)
def test_default_disk_type_by_machine_family(machine: str, disk: str) -> None:
    assert default_disk_type(machine) == disk


def test_default_disk_type_is_allowed_by_the_table() -> None:
    assert [
        name
        for name, (gpu, machine) in bundled_machine_types().items()
        if default_disk_type(machine.name) not in gpu.boot_disk_types
    ] == []


@pytest.mark.parametrize(
    ("name", "vcpus", "memory_gb"),
    [
        ("n1-standard-8", 8, 30.0),
        ("n1-highmem-4", 4, 26.0),
        ("custom-6-20480", 6, 20.0),
        ("n1-custom-2-4096-ext", 2, 4.0),
    ],
)
def test_n1_type_names_are_parsed(name: str, vcpus: int, memory_gb: float) -> None:
    machine = parse_n1(name)
    assert machine is not None
    assert (machine.vcpus, machine.memory_gb) == (vcpus, memory_gb)


@pytest.mark.parametrize(
    "name",
    [
        "n1-standard-3",
        "n1-highmem-1",
        "custom-7-20480",
        "custom-6-20481",
        "n1-ultra-8",
        "n1-standard-8-more",
        "",
    ],
)
def test_invalid_n1_type_names_return_none(name: str) -> None:
    assert parse_n1(name) is None


def test_every_predefined_n1_type_parses_to_itself() -> None:
    assert [machine for machine in n1_predefined() if parse_n1(machine.name) != machine] == []


@pytest.mark.parametrize(
    ("driver", "branch"),
    [("R535", 535), ("535.183.01", 535), ("580.95.05", 580), ("default", None), ("latest", None)],
)
def test_driver_branch_is_parsed(driver: str, branch: int | None) -> None:
    assert driver_branch(driver) == branch


@pytest.mark.parametrize(
    ("gpu", "driver"),
    [("nvidia-b200", "R535"), ("nvidia-l4", "R470"), ("nvidia-h100-80gb", "515.65.01")],
)
def test_driver_too_old_for_the_gpu_is_refused(gpu: str, driver: str) -> None:
    with pytest.raises(SettingsError, match="too old") as caught:
        check_driver(gpu, driver)
    assert caught.value.where == "driver"
    check_driver(gpu, "default")
    check_driver(gpu, "R580")
    check_driver(None, driver)
