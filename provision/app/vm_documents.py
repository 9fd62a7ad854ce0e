"""VMs and static hosts as the documents of `--json`, and as tables for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from provision.app.session import Session
from provision.cloud.create import HALTED
from provision.model import Vm


def static_document(session: Session, name: str) -> dict[str, Any]:
    """A host of the settings, with the keys of a VM."""
    entry = session.settings.hosts[name]
    return {
        "name": name,
        "zone": None,
        "status": "STATIC",
        "machine_type": None,
        "gpu": session.settings.gpu,
        "address": entry.address,
        "instance_id": None,
    }


def document(vm: Vm) -> dict[str, Any]:
    """A VM for `--json`; ages and times left in seconds."""
    return {
        "name": vm.name,
        "zone": vm.zone,
        "status": vm.status,
        "machine_type": vm.machine_type,
        "gpu": vm.gpu,
        "address": vm.address,
        "instance_id": vm.instance_id,
        "age_s": _age_s(vm.created),
        "cost_usd": None,
        "ttl_left_s": _ttl_left_s(vm),
    }


def _ttl_left_s(vm: Vm) -> int | None:
    """Seconds until the cloud stops it, counted from its last start; None when it does not run or has no limit."""
    ran_s = _age_s(vm.started or vm.created)
    return None if vm.ttl_s is None or ran_s is None or vm.status in HALTED else max(0, vm.ttl_s - ran_s)


def _age_s(created: str) -> int | None:
    try:
        return max(0, int((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()))
    except (TypeError, ValueError):
        return None


def table(vms: list[dict[str, Any]]) -> str:
    """One line for each VM."""
    columns = ("name", "zone", "status", "machine_type", "gpu", "address", "age", "ttl left")
    rows = [columns, *((*(cell(vm[key]) for key in columns[:6]), span(vm["age_s"]), span(vm["ttl_left_s"])) for vm in vms)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def cell(value: object) -> str:
    """A value for people."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    return "-" if value is None else str(value)


def span(seconds: int | None) -> str:
    """`1h05m`, or `5m07s` under an hour."""
    if seconds is None:
        return "-"
    hours, rest = divmod(seconds, 3600)
    return f"{hours}h{rest // 60:02}m" if hours else f"{rest // 60}m{rest % 60:02}s"
