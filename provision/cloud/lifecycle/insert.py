"""One insert in one zone: journalled, made, and cleaned up after a refusal.

What a killed run left in the journal is recovered in recovery.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from provision.cloud.api.labels import REQUEST_LABEL
from provision.cloud.api.protocol import OperationResult
from provision.cloud.lifecycle.context import CloudContext, left_behind_error
from provision.cloud.lifecycle.journal import (
    DELETING,
    GONE,
    LEFT_BEHIND,
    MADE,
    UNSURE,
)
from provision.cloud.lifecycle.waiting import wait_for_capacity
from provision.cloud.refusal import TIMED_OUT, CloudRefused
from provision.cloud.refusal_table import RefusalKind, classify
from provision.core.errors import CleanupFailed, CloudError
from provision.core.model import Vm, VmSpec


@dataclass(frozen=True)
class Inserted:
    """A VM of the requested name; `is_new` when this insert made it."""

    vm: Vm
    is_new: bool


def insert_vm(
    context: CloudContext, spec: VmSpec, zone: str, is_enough: Callable[[], bool] = lambda: False
) -> Inserted:
    """Write the intent, insert the VM in `zone`, and clean up after a refusal.

    An insert whose reply is lost is looked up by its requestId, and its VM is kept. A VM of the
    same owner that another run made meanwhile is returned as it is. A flex-start VM is waited for
    as long as its request is valid, or until `is_enough()`. The caller ends with `mark_made` or
    `delete_unwanted` for a new VM.

    Raises the refusal, or `CleanupFailed` when something may be left behind.
    """
    request_id = context.new_id()
    marked = replace(spec, labels={**spec.labels, REQUEST_LABEL: request_id})
    context.journal.intent(marked, zone, request_id)
    try:
        vm = context.cloud.create(marked, zone, request_id=request_id)
    except CloudError as error:
        recovered = _vm_of_lost_reply(context, spec.name, zone, request_id, error)
        if recovered is None:
            raise
        vm = recovered
    try:
        vm = wait_for_capacity(context, vm, spec.request_valid_s or 0, is_enough)
    except CloudRefused:
        clean_up_insert(context, spec.name, zone, request_id, if_absent=GONE)
        raise
    is_new = is_made_by(vm, request_id)
    if not is_new:
        context.journal.mark(request_id, GONE)
    return Inserted(vm, is_new)


def mark_made(context: CloudContext, vm: Vm) -> None:
    """Record that a VM of this run is wanted; until then a killed run leaves an orphan."""
    context.journal.mark(vm.labels[REQUEST_LABEL], MADE)


def is_made_by(vm: Vm | None, request_id: str) -> bool:
    """Return whether the insert of `request_id` made the VM."""
    return vm is not None and vm.labels.get(REQUEST_LABEL) == request_id


def delete_unwanted(context: CloudContext, vm: Vm) -> None:
    """Delete an unwanted VM of this run. Raises `CleanupFailed` when it may go on billing."""
    request_id = vm.labels[REQUEST_LABEL]
    context.journal.mark(request_id, DELETING)
    clean_up_insert(context, vm.name, vm.zone, request_id, if_absent=GONE)


def _vm_of_lost_reply(
    context: CloudContext, name: str, zone: str, request_id: str, error: CloudError
) -> Vm | None:
    """Return the VM of an insert whose reply was lost; after a refusal clean up and return None.

    Raises the error of the insert's operation where that is not `error` itself.
    """
    result = _operation_result(context, zone, request_id, error)
    if result is not None and result.refusal is None:
        vm = _fetch_vm(context, name, zone, request_id)
        if vm is not None and is_made_by(vm, request_id):
            return vm
    if_absent = UNSURE if result is None else GONE
    clean_up_insert(context, name, zone, request_id, if_absent=if_absent)
    if result is not None and result.refusal is not None and result.refusal is not error:
        raise result.refusal from error
    return None


def _operation_result(
    context: CloudContext, zone: str, request_id: str, error: CloudError
) -> OperationResult | None:
    """Return the result of the insert's operation; None while it is unknown."""
    is_lost = (
        isinstance(error, CloudRefused)
        and not error.refusal.final
        and classify(error.refusal).kind is RefusalKind.TRANSIENT
    )
    if not isinstance(error, CloudRefused) or not is_lost:
        return OperationResult(error)
    if error.refusal.code == TIMED_OUT:
        return None  # the client has waited for it for as long as it may
    try:
        return context.cloud.operation_result(zone, request_id)
    except CloudError:
        return None


def _fetch_vm(context: CloudContext, name: str, zone: str, request_id: str) -> Vm | None:
    try:
        return context.cloud.get(name, zone)
    except CloudError as error:
        raise _left_behind(context, name, zone, request_id, error) from error


def clean_up_insert(
    context: CloudContext, name: str, zone: str, request_id: str, *, if_absent: str
) -> None:
    """Delete the VM of this requestId: a failed insert may have made one all the same.

    The journal then has it as gone, or as `if_absent` when there is none. Raises `CleanupFailed`
    when the VM may go on billing.
    """
    state = if_absent
    vm = _fetch_vm(context, name, zone, request_id)
    try:
        if is_made_by(vm, request_id):
            context.cloud.delete(name, zone, request_id=context.new_id())
            state = GONE
    except CloudError as error:
        raise _left_behind(context, name, zone, request_id, error) from error
    context.journal.mark(request_id, state)


def _left_behind(
    context: CloudContext, name: str, zone: str, request_id: str, error: CloudError
) -> CleanupFailed:
    context.journal.mark(request_id, LEFT_BEHIND, error.why)
    return left_behind_error("a VM may be left behind and may bill", name, zone, error)
