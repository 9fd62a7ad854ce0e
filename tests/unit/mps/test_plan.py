"""The plan: measured settings are recommended, and every plan keeps its limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.mps.plan.advice import BUSY
from provision.mps.plan.gpu_limits import (
    LEAST_SMS,
    SPARE_CLIENTS,
    client_limit,
    context_mib,
    sms_at,
    sms_of,
)
from provision.mps.plan.memory import SERVER_MIB
from provision.mps.plan.model import HostFacts, Plan, Workload
from provision.mps.plan.sizing import plan

H200 = HostFacts(
    gpu="NVIDIA H200",
    driver="580.159.04",
    compute_capability=(9, 0),
    cuda=(13, 0),
    memory_total_mib=143771,
    memory_free_mib=143000,
    sm_count=132,
    sm_source="driver",
    vcpus=16,
    shm_mib=1024,
    compute_mode="Default",
)
L4 = replace(
    H200,
    gpu="NVIDIA L4",
    compute_capability=(8, 9),
    memory_total_mib=23034,
    memory_free_mib=22563,
    sm_count=58,
    vcpus=8,
)
LIGHT = Workload(peak_memory_mib=900, activity=0.05, activity_kind="sm")


def advice_texts(made: Plan, level: str) -> str:
    return "\n".join(each.text for each in made.advice if each.level == level)


def test_peak_below_one_context_is_warned_about() -> None:
    """A peak is what nvidia-smi shows for a process, and that is never less than its context."""
    assert "a peak of 100 MiB is less than one context" in advice_texts(
        plan(L4, Workload(peak_memory_mib=100)), "warn"
    )
    assert "less than one context" not in advice_texts(
        plan(L4, Workload(peak_memory_mib=context_mib(58))), "warn"
    )
    unknown = replace(L4, gpu="NVIDIA X", sm_count=None, sm_source="")
    assert "less than one context" not in advice_texts(
        plan(unknown, Workload(peak_memory_mib=100)), "warn"
    )


# --- what was measured ---


@pytest.mark.parametrize(
    ("percentage", "sms"), [(100, 132), (30, 38), (25, 32), (12, 14), (10, 12)]
)
def test_multiprocessors_of_a_share_match_measured_values(percentage: int, sms: int) -> None:
    assert sms_at(percentage, 132) == sms
    assert sms_at(percentage, 132, (9, 0)) == sms


@pytest.mark.parametrize(("percentage", "sms"), [(1, 8), (2, 8), (3, 8), (7, 8)])
def test_hopper_share_has_at_least_eight_multiprocessors(percentage: int, sms: int) -> None:
    """Seen on an H200 at 1, 2 and 3 %; of other GPUs no floor is known, so none is counted on."""
    assert sms_at(percentage, 132, (9, 0)) == sms
    assert sms_at(1, 4, (9, 0)) == 4
    assert sms_at(1, 132, (8, 9)) == sms_at(1, 132) == 1
    assert plan(H200, Workload(clients=46, activity=0.01, activity_kind="sm")).sms_per_client == 8


@pytest.mark.parametrize(("sms", "mib"), [(132, 517), (32, 144), (14, 79), (12, 72)])
def test_context_sizes_match_measured_values(sms: int, mib: int) -> None:
    assert context_mib(sms) == pytest.approx(mib, abs=4)


def test_plan_for_light_trainings_is_the_fastest_measured_setting() -> None:
    """16 light MLPs on an H200: 2.25 s at 200/N, 2.30 at 100/N, 2.48 without (docs/facts.md)."""
    made = plan(H200, LIGHT)
    assert (made.clients, made.thread_percentage, made.sms_per_client) == (16, 13, 16)
    assert made.omp_threads == 1
    assert made.worthwhile
    assert made.speedup == (16.0, "16 processes")
    assert "200/N" in made.percentage_reason


def test_omp_threads_divide_cores_among_clients() -> None:
    assert plan(H200, Workload(clients=4)).omp_threads == 4
    assert plan(H200, Workload(clients=40)).omp_threads == 1


@pytest.mark.parametrize(
    ("capability", "cuda", "limit"),
    [
        ((6, 1), (12, 2), 16),
        ((7, 0), (12, 2), 48),
        ((9, 0), (13, 0), 48),
        ((9, 0), (13, 1), 60),
        (None, None, 48),
    ],
)
def test_client_limit_depends_on_gpu_and_cuda_version(
    capability: tuple[int, int] | None, cuda: tuple[int, int] | None, limit: int
) -> None:
    assert client_limit(capability, cuda) == limit


# --- the choice of the share ---


def test_unknown_activity_gets_no_cap() -> None:
    made = plan(H200, Workload(clients=8))
    assert made.thread_percentage == 100
    assert "no cap" in made.percentage_reason
    assert "--measure" in advice_texts(made, "note")


def test_activity_above_twice_the_share_gets_no_cap() -> None:
    assert (
        plan(H200, Workload(clients=8, activity=0.4, activity_kind="sm")).thread_percentage == 100
    )


def test_percentage_falls_where_memory_is_short() -> None:
    small = replace(H200, memory_total_mib=8000, memory_free_mib=8000)
    made = plan(small, Workload(clients=16))
    assert made.clients == 16
    assert made.thread_percentage == 13
    assert "do not fit" in made.percentage_reason
    smaller = plan(
        replace(small, memory_total_mib=1700, memory_free_mib=1700), Workload(clients=16)
    )
    assert (smaller.clients, smaller.thread_percentage) == (16, 7)
    assert "100/N" in smaller.percentage_reason


def test_share_has_at_least_two_multiprocessors() -> None:
    a16 = replace(L4, gpu="NVIDIA A16", sm_count=10, vcpus=46)
    made = plan(a16, Workload(clients=30, activity=0.01, activity_kind="sm"))
    assert (made.thread_percentage, made.sms_per_client) == (20, 2)
    assert "the least" in made.percentage_reason


# --- when it is the wrong tool ---


def test_busy_process_makes_mps_not_worthwhile() -> None:
    made = plan(H200, Workload(activity=0.9, activity_kind="sm"))
    assert not made.worthwhile
    assert "90%" in advice_texts(made, "stop")
    assert made.speedup.value == pytest.approx(1 / 0.9)


def test_time_utilisation_does_not_limit_clients() -> None:
    made = plan(H200, Workload(activity=0.95, activity_kind="time", peak_memory_mib=800))
    assert made.worthwhile
    assert made.clients == 16
    assert made.speedup.value == 16
    assert "cannot be predicted" in advice_texts(made, "note")


def test_cpu_cores_limit_the_speedup() -> None:
    made = plan(H200, Workload(activity=0.02, activity_kind="sm", cores=4.0))
    assert made.speedup.value == 4.0
    assert "4.0 cores" in made.speedup.reason


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mig": True}, "MIG"),
        ({"compute_capability": (6, 0)}, "Volta"),
        ({"compute_mode": "Prohibited"}, "PROHIBITED"),
        ({"vcpus": 1}, "nothing to share"),
    ],
)
def test_unsuitable_host_gives_stop_advice(change: dict[str, object], text: str) -> None:
    made = plan(replace(L4, **change), Workload())  # type: ignore[arg-type]
    assert not made.worthwhile
    assert text in advice_texts(made, "stop")


def test_requested_clients_are_reduced_or_warned_about() -> None:
    assert "100 clients were asked for, 46 are possible" in advice_texts(
        plan(H200, Workload(clients=100)), "warn"
    )
    assert "slow one another down" in advice_texts(plan(L4, Workload(clients=20)), "warn")
    made = plan(L4, Workload(clients=8, peak_memory_mib=6000))
    assert (made.clients, made.clients_reason) == (3, "so many fit into the GPU's memory")
    large = plan(L4, Workload(clients=4, peak_memory_mib=30_000))
    assert "even one process does not fit" in advice_texts(large, "stop")
    assert "nothing to share" not in advice_texts(large, "stop"), "not even one process fits"
    assert (large.clients_reason, large.memory_limit_mib, large.tensorflow_limit_mib) == (
        "not even one fits into the GPU's memory",
        None,
        None,
    )
    assert "4 clients were asked for, 1 is possible" in advice_texts(large, "warn")
    assert "only one process fits" in advice_texts(
        plan(L4, Workload(clients=4, peak_memory_mib=15_000)), "stop"
    )


def test_memory_in_use_is_not_shared_out() -> None:
    made = plan(replace(L4, memory_free_mib=6000), Workload(clients=4, peak_memory_mib=1500))
    assert (made.clients, made.memory_limit_mib) == (3, (6000 - 1664 - 74) // 3)


# --- for every host ---

MAYBE_MIB = st.none() | st.integers(0, 2_000_000)
HOSTS = st.builds(
    HostFacts,
    compute_capability=st.none() | st.tuples(st.integers(3, 13), st.integers(0, 9)),
    cuda=st.none() | st.tuples(st.integers(10, 14), st.integers(0, 9)),
    memory_total_mib=MAYBE_MIB,
    memory_free_mib=MAYBE_MIB,
    sm_count=st.none() | st.integers(1, 300),
    vcpus=st.integers(1, 400),
    shm_mib=st.none() | st.integers(0, 100_000),
    compute_mode=st.sampled_from(["", "Default", "Exclusive_Process", "Prohibited"]),
    mig=st.booleans(),
)
LOADS = st.builds(
    Workload,
    clients=st.none() | st.integers(1, 500),
    peak_memory_mib=st.none() | st.integers(0, 200_000),
    activity=st.none() | st.floats(0.0, 1.0),
    activity_kind=st.sampled_from(["", "sm", "time"]),
    cores=st.none() | st.floats(0.001, 64.0),
)


@given(HOSTS, LOADS)
def test_every_plan_is_within_its_limits(host: HostFacts, work: Workload) -> None:
    made = plan(host, work)
    assert 1 <= made.clients <= made.client_limit - SPARE_CLIENTS
    assert work.clients is None or made.clients <= work.clients
    assert work.clients is not None or made.clients <= host.vcpus
    assert 1 <= made.thread_percentage <= 100
    assert made.clients > 1 or made.thread_percentage == 100
    assert host.sm_count is None or made.sms_per_client is not None
    assert (
        made.sms_per_client is None
        or host.sm_count is None
        or made.sms_per_client >= min(LEAST_SMS, host.sm_count)
    )
    assert made.omp_threads >= 1
    assert made.omp_threads * made.clients <= max(host.vcpus, made.clients)
    free = host.memory_total_mib if host.memory_free_mib is None else host.memory_free_mib
    assert made.memory_limit_mib is None or 0 < made.memory_limit_mib * made.clients <= (free or 0)
    assert made.tensorflow_limit_mib is None or 0 <= made.tensorflow_limit_mib <= (
        made.memory_limit_mib or 0
    )
    assert 1.0 <= made.speedup.value <= made.clients
    assert made.clients_reason
    assert made.percentage_reason
    assert made == plan(host, work)


@given(HOSTS, LOADS)
def test_memory_limits_cover_expected_memory(host: HostFacts, work: Workload) -> None:
    """A limit below what a client is expected to take would end it with out of memory."""
    made = plan(host, work)
    if made.memory_limit_mib is not None and made.expected_memory_mib is not None:
        assert (
            made.memory_limit_mib * made.clients
            >= made.expected_memory_mib - SERVER_MIB - made.clients
        )
        assert made.tensorflow_limit_mib is not None


@given(HOSTS, LOADS)
def test_worthwhile_is_false_exactly_with_stop_advice(host: HostFacts, work: Workload) -> None:
    made = plan(host, work)
    hopeless = (
        host.mig
        or host.compute_mode == "Prohibited"
        or (host.compute_capability or (9, 0)) < (7, 0)
    )
    busy = work.activity_kind == "sm" and (work.activity or 0) > BUSY
    assert not made.worthwhile if hopeless or busy or made.clients == 1 else True
    assert made.worthwhile or advice_texts(made, "stop")
    assert made.advice, "every plan has advice"
    assert all(each.text for each in made.advice)


@pytest.mark.parametrize("clients", [1, 2, 10, 16, 48, 60, 100])
@pytest.mark.parametrize(
    "host",
    [H200, L4, replace(L4, cuda=(13, 1)), replace(L4, sm_count=10, gpu="NVIDIA A16")],
    ids=lambda host: host.gpu,
)
@pytest.mark.parametrize(
    "work",
    [Workload(), LIGHT, replace(LIGHT, peak_memory_mib=6000)],
    ids=["unknown", "light", "large"],
)
def test_plans_for_common_client_counts_are_consistent(
    host: HostFacts, clients: int, work: Workload
) -> None:
    made = plan(host, replace(work, clients=clients))
    assert made.clients <= min(clients, made.client_limit - SPARE_CLIENTS)
    assert (made.clients < clients) == ("were asked for" in advice_texts(made, "warn"))
    assert (made.clients > host.vcpus) == ("slow one another down" in advice_texts(made, "warn"))
    assert made.omp_threads == max(1, host.vcpus // made.clients)
    assert made.sms_per_client is not None
    assert made.sms_per_client >= LEAST_SMS
    assert made.worthwhile == (made.clients > 1)


@given(HOSTS, LOADS)
def test_expected_memory_of_worthwhile_plan_is_free(host: HostFacts, work: Workload) -> None:
    made = plan(host, work)
    free = host.memory_total_mib if host.memory_free_mib is None else host.memory_free_mib
    if made.worthwhile and made.expected_memory_mib is not None and free is not None:
        assert made.expected_memory_mib <= free


@given(HOSTS, LOADS, st.integers(0, 100_000))
def test_more_free_memory_never_reduces_clients(host: HostFacts, work: Workload, more: int) -> None:
    if host.memory_free_mib is not None:
        assert (
            plan(replace(host, memory_free_mib=host.memory_free_mib + more), work).clients
            >= plan(host, work).clients
        )


@given(HOSTS, LOADS, st.integers(0, 100_000))
def test_larger_peak_never_increases_clients(host: HostFacts, work: Workload, more: int) -> None:
    peak = work.peak_memory_mib or 0
    small, large = (
        plan(host, replace(work, peak_memory_mib=value)) for value in (peak, peak + more)
    )
    assert large.clients <= small.clients


@pytest.mark.parametrize(
    ("name", "sms"),
    [
        *(
            ("Tesla T4", 40),
            ("NVIDIA L4", 58),
            ("NVIDIA A100-SXM4-40GB", 108),
            ("NVIDIA H100 80GB HBM3", 132),
            ("NVIDIA H100 PCIe", 114),
        ),
        *(
            ("NVIDIA H200", 132),
            ("Tesla V100-SXM2-16GB", 80),
            ("NVIDIA B200", 148),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188),
        ),
        *(
            ("Tesla P4", 20),
            ("Tesla P100-PCIE-16GB", 56),
            ("NVIDIA L40S", 142),
            ("Quadro of tomorrow", None),
        ),
        *(
            ("NVIDIA RTX A1000", None),
            ("Quadro P1000", None),
            ("Quadro P400", None),
            ("NVIDIA H2000", None),
        ),
        *(
            ("NVIDIA A100 80GB PCIe", 108),
            ("Tesla V100S-PCIE-32GB", 80),
            ("NVIDIA GH200 480GB", 132),
            ("NVIDIA RTX A6000", 84),
        ),
    ],
)
def test_multiprocessors_of_gpu_names(name: str, sms: int | None) -> None:
    assert sms_of(name) == sms


def test_gpu_table_agrees_with_mock_gpu_models() -> None:
    from provision.testing.host.gpu_models import MODELS

    assert {gpu.name: sms_of(gpu.name) for gpu in MODELS.values()} == {
        gpu.name: gpu.multiprocessors for gpu in MODELS.values()
    }


@pytest.mark.parametrize(
    ("name", "clients", "percentage", "worthwhile"),
    [("h100_mlp", 16, 13, True), ("h100_matmul", 3, 100, False)],
)
def test_recorded_h100_measurements_give_expected_plans(
    name: str, clients: int, percentage: int, worthwhile: bool
) -> None:
    from provision.mps.plan.measure import read_measurement

    text = (Path(__file__).parents[2] / "data" / "mps" / "measure" / f"{name}.txt").read_text(
        encoding="utf-8"
    )
    made = plan(H200, read_measurement(text).workload(None))
    assert (made.clients, made.thread_percentage, made.worthwhile) == (
        clients,
        percentage,
        worthwhile,
    )


def test_memory_in_use_gives_a_note() -> None:
    """The plan counts what is free: running workers, one's own included, make it smaller."""
    made = plan(replace(L4, memory_free_mib=16_000), Workload(clients=4))
    assert "7,034 MiB of the GPU's memory are in use" in advice_texts(made, "note")
    assert "in use" not in advice_texts(plan(L4, Workload(clients=4)), "note")
    assert "in use" not in advice_texts(
        plan(replace(L4, memory_free_mib=None), Workload(clients=4)), "note"
    )
