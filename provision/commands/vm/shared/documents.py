"""VMs and static hosts as the documents of `--json`, and as tables for people."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from provision.cloud.api import body
from provision.cloud.lifecycle.create import HALTED
from provision.cloud.lifecycle.waiting import WAITING
from provision.cloud.market.prices import PriceList
from provision.commands.vm.shared.rates import (
    cost_usd,
    misread,
    overdue,
    seconds_since,
    seconds_until,
    unasked,
)
from provision.core import durations
from provision.core.model import Note, Vm
from provision.project.project import Project


def static_document(project: Project, name: str) -> dict[str, Any]:
    """A host of the settings, with the keys of a VM."""
    entry = project.settings.hosts[name]
    return {
        "name": name,
        "zone": None,
        "status": "STATIC",
        "machine_type": None,
        "gpu": project.settings.gpu,
        "address": entry.address,
        "instance_id": None,
    }


def document(vm: Vm, prices: PriceList | None = None) -> dict[str, Any]:
    """A VM for `--json`; ages and times left in seconds, costs in US dollars."""
    return {
        "name": vm.name,
        "zone": vm.zone,
        "status": vm.status,
        "machine_type": vm.machine_type,
        "gpu": vm.gpu,
        "address": vm.address,
        "instance_id": vm.instance_id,
        "age_s": seconds_since(vm.created, vm.ahead_s),
        "cost_usd": cost_usd(vm, prices),
        "ttl_left_s": ttl_left_s(vm),
    }


def ttl_left_s(vm: Vm) -> int | None:
    """Seconds until the cloud stops it: as the cloud says, else counted from its last start. None: it does not run, or has no limit."""
    if vm.status in {*HALTED, WAITING}:
        return None
    if (left_s := seconds_until(vm.stops_at, vm.ahead_s)) is not None:
        return left_s
    ran_s = seconds_since(vm.started or vm.created, vm.ahead_s)
    return None if vm.ttl_s is None or ran_s is None else max(0, vm.ttl_s - ran_s)


def table(vms: Sequence[Mapping[str, Any]]) -> str:
    """One line for each VM."""
    head = ("name", "status", "zone", "gpu", "age", "cost", "ttl left")
    rows = [
        (
            vm["name"],
            vm["status"],
            cell(vm["zone"]),
            cell(vm["gpu"]),
            span_or_dash(vm["age_s"]),
            usd(vm["cost_usd"]),
            span_or_dash(vm["ttl_left_s"]),
        )
        for vm in vms
    ]
    return aligned([head, *rows], right=(5,))


def say_overdue(project: Project, vms: Sequence[Vm]) -> None:
    """Name the VMs that are stopped for longer than their `idle_delete`, and those to which the settings' one never came."""
    program, wanted = project.program_argv0, project.settings.idle_delete
    if late := overdue(vms):
        named = ", ".join(f"{vm.name} ({why})" for vm, why in late)
        project.emit(Note(f"to be deleted: {named}; `{program} vm.gc` does"))
    for vm in misread(vms):
        value, label = (
            vm.labels[body.IDLE_DELETE_LABEL],
            f"{program} vm.label {body.IDLE_DELETE_LABEL}=7d --name {vm.name}",
        )
        project.emit(
            Note(
                f"{vm.name}: its label {body.IDLE_DELETE_LABEL} is {value!r}, which is no time: nothing deletes it; `{label}`"
            )
        )
    if silent := unasked(vms, project.settings.idle_delete_s):
        named = ", ".join(
            f"{vm.name} ({span_or_dash(seconds_since(vm.stopped, vm.ahead_s))})" for vm in silent
        )
        label = f"{program} vm.label {body.IDLE_DELETE_LABEL}={wanted} --name {','.join(vm.name for vm in silent)}"
        project.emit(
            Note(
                f"stopped for longer than idle_delete ({wanted}), and made without it: {named}; `{label}`"
            )
        )


def aligned(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int | None = None
) -> str:
    """Rows as columns two spaces apart; those numbered in `right` end below one another.

    Where `width` columns (those of the terminal, if there is one) are too few, a long word in the
    first column has a line of its own, with the rest below it, as df shows long devices.
    """
    width = shutil.get_terminal_size((0, 0)).columns if width is None else width
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    if width and sum(widths) + 2 * (len(widths) - 1) > width:
        room = width - sum(widths[1:]) - 2 * (len(widths) - 1)
        widths[0] = max((len(row[0]) for row in rows if len(row[0]) <= room), default=0)
    lines = []
    for row in rows:
        if len(row[0]) > widths[0]:
            lines.append(row[0])
        first = "" if len(row[0]) > widths[0] else row[0]
        cells = zip((first, *row[1:]), widths, strict=True)
        words = (
            text.rjust(size) if index in right else text.ljust(size)
            for index, (text, size) in enumerate(cells)
        )
        lines.append("  ".join(words).rstrip())
    return "\n".join(lines)


def listed(shown: Mapping[str, Any]) -> str:
    """A document of one VM, a line for each key and each label."""
    people = {
        "age_s": ("age", span_or_dash),
        "cost_usd": ("cost", usd),
        "ttl_left_s": ("ttl left", span_or_dash),
    }
    rows: list[tuple[str, str]] = []
    for key, value in shown.items():
        if isinstance(value, Mapping):
            pairs = [f"{name}={item}" for name, item in sorted(value.items())] or ["-"]
            rows += [(key if index == 0 else "", pair) for index, pair in enumerate(pairs)]
        elif key in people:
            name, says = people[key]
            rows.append((name, says(value)))
        else:
            rows.append((key.replace("_", " "), cell(value)))
    return aligned(rows, width=0)


def cell(value: object) -> str:
    """A value for people."""
    return "-" if value is None else str(value)


def usd(amount: float | None) -> str:
    """Dollars and cents, or that nobody knows."""
    return "unknown" if amount is None else f"${amount:,.2f}"


def span_or_dash(seconds: int | None) -> str:
    """A time span for people, or `-` for one that is unknown."""
    return "-" if seconds is None else durations.rounded(seconds)
