"""What VMs cost: sums that a reader can do by hand, on a clock that stands still."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from provision.cloud.lifecycle import vm_times
from provision.cloud.lifecycle.cost import HourlyRate, cost_usd, hourly_rate
from provision.cloud.lifecycle.vm_times import ran_s, ttl_left_s
from provision.cloud.market.prices import PriceList, packaged_prices
from provision.commands.vm import cost
from provision.commands.vm.cost import cost_document
from provision.commands.vm.list import vm_table
from provision.commands.vm.shared.documents import vm_document
from provision.commands.vm.shared.idle_notes import overdue_vms, unlabelled_idle_vms
from provision.commands.vm.show import vm_text
from provision.core.model import Vm
from provision.report.table import format_table, span_or_dash, usd_or_unknown

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PRICES = PriceList(
    "2026-01-01", {"us-central1": {"g2-standard-8": (1.0, 0.25), "pd-balanced-gb": (0.001, 0.001)}}
)
VM = Vm(
    name="dev",
    zone="us-central1-a",
    status="RUNNING",
    machine_type="g2-standard-8",
    gpu="nvidia-l4",
    gpu_count=1,
    disk_gb=200,
)


def ago(**span_: float) -> str:
    return (NOW - timedelta(**span_)).isoformat()


@pytest.fixture(autouse=True)
def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            del tz
            return NOW

    monkeypatch.setattr(vm_times, "datetime", Clock)


def test_running_vm_costs_machine_since_start_and_disk_since_creation() -> None:
    vm = replace(VM, created=ago(hours=10), started=ago(hours=3), stopped=ago(hours=5))
    assert ran_s(vm) == 3 * 3600
    assert cost_usd(vm, PRICES) == 3 * 1.0 + 10 * 0.2
    assert cost_usd(replace(vm, provisioning_model="SPOT"), PRICES) == 3 * 0.25 + 10 * 0.2
    assert cost_usd(replace(vm, started="", created=ago(hours=2)), PRICES) == 2 * 1.0 + 2 * 0.2


def test_stopped_vm_costs_disk_and_last_run() -> None:
    vm = replace(
        VM, status="TERMINATED", created=ago(hours=10), started=ago(hours=8), stopped=ago(hours=6)
    )
    assert (ran_s(vm), cost_usd(vm, PRICES)) == (2 * 3600, 2 * 1.0 + 10 * 0.2)
    row = cost_document([vm], PRICES)["vms"][0]
    assert (row["usd_per_hour"], row["since"], row["cost_by_ttl_usd"]) == (0.2, vm.stopped, None)


def test_length_of_a_finished_run_ignores_the_local_clock() -> None:
    ahead = NOW + timedelta(hours=7)
    vm = replace(
        VM,
        status="TERMINATED",
        started=(ahead - timedelta(hours=2)).isoformat(),
        stopped=ahead.isoformat(),
    )
    assert ran_s(vm) == 2 * 3600


@pytest.mark.parametrize("ahead_s", [-7200.0, 3600.0])
def test_running_time_uses_the_clouds_clock(ahead_s: float) -> None:
    cloud = NOW + timedelta(seconds=ahead_s)
    vm = replace(
        VM,
        created=(cloud - timedelta(hours=10)).isoformat(),
        started=(cloud - timedelta(hours=3)).isoformat(),
        ttl_s=8 * 3600,
    )
    reported = replace(vm, ahead_s=ahead_s)
    assert (ran_s(reported), cost_usd(reported, PRICES), ttl_left_s(reported)) == (
        3 * 3600,
        3 * 1.0 + 10 * 0.2,
        5 * 3600,
    )
    assert (
        ttl_left_s(replace(reported, stops_at=(cloud + timedelta(hours=6)).isoformat())) == 6 * 3600
    )
    assert vm_document(reported, PRICES)["age_s"] == 10 * 3600
    late = replace(
        reported,
        status="TERMINATED",
        stopped=(cloud - timedelta(hours=1)).isoformat(),
        labels={"provision-idle-delete": "1h"},
    )
    assert overdue_vms([late]) == [(late, "stopped for 1h, idle_delete is 1h")]
    assert unlabelled_idle_vms([replace(late, labels={})], 3600) == [replace(late, labels={})]
    assert vm == reported, "the clock offset does not distinguish two VMs"


@pytest.mark.parametrize(
    "vm",
    [
        replace(VM, zone="mars-north1-a", created=ago(hours=1)),
        replace(VM, machine_type="a4-highgpu-8g", created=ago(hours=1)),
        replace(VM, gpu="nvidia-of-next-year", machine_type="n1-standard-8", created=ago(hours=1)),
        replace(VM, provisioning_model="FLEX_START", created=ago(hours=1)),
        replace(VM, created=""),
        replace(VM, created="yesterday"),
        replace(VM, status="TERMINATED", created=ago(hours=1)),
    ],
)
def test_cost_is_none_when_a_rate_is_unknown(vm: Vm) -> None:
    assert cost_usd(vm, PRICES) is None


def test_packaged_list_has_the_default_machine() -> None:
    rate = hourly_rate(VM)
    assert rate.machine is not None
    assert rate.disk is not None
    assert 0.5 < rate.machine < 2
    assert 0.01 < rate.disk < 0.1
    assert hourly_rate(replace(VM, zone="mars-north1-a")) == HourlyRate(None, None)


def test_cost_until_the_time_limit() -> None:
    running = replace(VM, created=ago(hours=3), started=ago(hours=3), ttl_s=8 * 3600)
    endless = replace(VM, name="endless", created=ago(hours=1), started=ago(hours=1))
    bill = cost_document([running, endless], PRICES)
    first, second = bill["vms"]
    assert (first["cost_usd"], first["usd_per_hour"], first["cost_by_ttl_usd"]) == (3.6, 1.2, 9.6)
    assert (second["cost_usd"], second["cost_by_ttl_usd"]) == (1.2, None)
    assert bill["total"] == {"usd_per_hour": 2.4, "cost_usd": 4.8, "cost_by_ttl_usd": None}
    assert cost_document([], PRICES)["total"] == {
        "usd_per_hour": 0,
        "cost_usd": 0,
        "cost_by_ttl_usd": 0,
    }


def test_time_left_is_what_the_cloud_reports() -> None:
    vm = replace(VM, created=ago(hours=9), started=ago(hours=3), ttl_s=8 * 3600)
    assert ttl_left_s(vm) == 5 * 3600
    assert ttl_left_s(replace(vm, stops_at=(NOW + timedelta(hours=6)).isoformat())) == 6 * 3600
    assert ttl_left_s(replace(vm, stops_at=ago(seconds=1))) == 0
    assert ttl_left_s(replace(vm, status="TERMINATED")) is None
    assert ttl_left_s(replace(vm, ttl_s=None)) is None


def test_time_span_is_formatted_or_a_dash() -> None:
    assert [span_or_dash(seconds) for seconds in (None, 0, 307, 3900, 90_000, 10 * 86400)] == [
        "-",
        "0s",
        "5m07s",
        "1h05m",
        "1d01h",
        "10d00h",
    ]
    assert [usd_or_unknown(amount) for amount in (None, 0.0, 1234.5)] == [
        "unknown",
        "$0.00",
        "$1,234.50",
    ]
    assert format_table([("a", "b"), ("long", "1")], right=(1,)) == "a     b\nlong  1"
    row = {
        "name": "dev",
        "status": "RUNNING",
        "zone": "us-central1-a",
        "gpu": None,
        "age_s": 60,
        "cost_usd": 1.5,
        "ttl_left_s": None,
    }
    assert vm_table([row]).splitlines() == [
        "name  status   zone           gpu  age     cost  ttl left",
        "dev   RUNNING  us-central1-a  -    1m00s  $1.50  -",
    ]


def test_table_is_as_wide_as_the_terminal() -> None:
    """A name of 63 letters has a line of its own, to be copied; the other lines stay narrow."""
    long = "n" * 63
    row = {
        "name": "dev",
        "status": "TERMINATED",
        "zone": "northamerica-northeast1-a",
        "gpu": "nvidia-h100-mega-80gb",
        "age_s": 60,
    }
    rows = [
        {**row, "cost_usd": 1.5, "ttl_left_s": 3600},
        {**row, "name": long, "cost_usd": 1234.5, "ttl_left_s": None},
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        lines = vm_table(rows).splitlines()
        assert [line[:4] for line in lines] == ["name", "dev ", "nnnn", "    "]
        assert lines[2] == long
        assert max(map(len, lines)) <= 100
        assert lines[1].index("TERMINATED") == lines[3].index("TERMINATED")
        patch.setenv("COLUMNS", "200")
        assert len(vm_table(rows).splitlines()) == 3
        patch.delenv("COLUMNS")
        assert len(vm_table(rows).splitlines()) == 3, "output into a pipe has one row a line"
    assert format_table([("name", "b"), ("a", "1")], width=3) == "name\n b\na\n 1".replace(
        "\n ", "\n  "
    )


def test_vm_is_formatted_for_people() -> None:
    shown = {
        "name": "dev",
        "machine_type": "g2-standard-8",
        "address": None,
        "age_s": 3900,
        "cost_usd": None,
        "ttl_left_s": None,
    }
    assert vm_text({**shown, "labels": {"b": "2", "a": "1"}}).splitlines() == [
        "name          dev",
        "machine type  g2-standard-8",
        "address       -",
        "age           1h05m",
        "cost          unknown",
        "ttl left      -",
        "labels        a=1",
        "              b=2",
    ]


def test_times_are_shown_in_one_time_zone() -> None:
    vm = replace(
        VM, created="2026-11-21T01:30:00.000-08:00", started="2026-11-21T01:30:00.000-08:00"
    )
    assert "2026-11-21 09:30" in cost._text(cost_document([vm], PRICES))


def test_pending_vm_has_no_run_time_and_no_end() -> None:
    waiting = replace(VM, status="PENDING", created=ago(hours=1), started="")
    bill = cost_document([waiting], packaged_prices())["vms"][0]
    assert (bill["ran_s"], bill["ttl_left_s"]) == (0, None)
    assert bill["usd_per_hour"] == bill["cost_usd"] == pytest.approx(200 * 0.00013699, abs=1e-3)


def test_vms_stopped_for_too_long_are_listed() -> None:
    label = {"provision-idle-delete": "7d"}
    old = replace(
        VM,
        name="old",
        status="TERMINATED",
        started=ago(days=9),
        stopped=ago(days=8, hours=5),
        labels=label,
    )
    recent = replace(old, name="recent", stopped=ago(days=6))
    again = replace(old, name="again", status="RUNNING")
    undated = replace(old, name="undated", stopped="")
    silent = replace(old, name="silent", labels={})
    late = [old, recent, again, undated, silent, VM]
    assert overdue_vms(late) == [(old, "stopped for 8d5h, idle_delete is 7d")]
    assert unlabelled_idle_vms(late, 7 * 86400) == [silent]
    assert unlabelled_idle_vms(late, None) == []
    assert overdue_vms([replace(old, started=ago(days=1))]) == [], (
        "started after it was stopped, regardless of its status"
    )
    assert overdue_vms([replace(old, labels={"provision-idle-delete": "none"})]) == []
    assert overdue_vms([replace(old, status="SUSPENDED")]) == []
