"""The result of a task that changes several VMs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from provision.cloud.lifecycle.batch import Result
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.documents import vm_document
from provision.core.errors import worst_exit
from provision.core.model import Vm

Change: TypeAlias = tuple[Vm, bool]
"""A VM after a task, and whether the task changed it."""


def changes_result(
    acts: Sequence[Result[Vm, Change]], line_of: Callable[[Vm, bool], str]
) -> TaskResult:
    """Return each VM with `changed`, and with its error where the task failed on it.

    `line_of` gives the line for people from a VM and its `changed`.
    """
    rows, lines, errors = [], [], []
    for act in acts:
        if act.error is not None:
            rows.append({**vm_document(act.item), "changed": False, "error": act.error.as_dict()})
            errors.append(act.error)
        elif act.value is not None:
            vm, changed = act.value
            rows.append({**vm_document(vm), "changed": changed})
            lines.append(line_of(vm, changed))
    document = {"vms": rows, "changed": any(row["changed"] for row in rows)}
    if errors:
        document["error"] = errors[0].as_dict()
    code = worst_exit([error.exit_code for error in errors])
    return TaskResult(document, code, "\n".join(lines), tuple(errors))
