"""One insert in one zone, from the intent on disk to a VM or to nothing; and what became of the inserts of runs that ended early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from provision.cloud.api import body
from provision.cloud.api.ports import Ended
from provision.cloud.lifecycle import journal as written
from provision.cloud.lifecycle.context import Means, left_behind
from provision.cloud.lifecycle.journal import Entry
from provision.cloud.lifecycle.waiting import WAITING, awaited
from provision.cloud.market.placement import Kind, classify
from provision.cloud.refusal import TIMED_OUT, CloudRefused
from provision.core.errors import CloudError
from provision.core.model import Vm, VmSpec


@dataclass(frozen=True)
class Inserted:
    """A VM of the wanted name; `is_new` when this very insert made it."""

    vm: Vm
    is_new: bool


def insert(
    means: Means, spec: VmSpec, zone: str, enough: Callable[[], bool] = lambda: False
) -> Inserted:
    """The VM, made in `zone`: intent on disk, insert, and on a refusal everything removed that it may have made.

    A flex-start VM is waited for as long as its request is valid, or until `enough()`: then it
    comes back as it is.

    A lost answer is no refusal: the insert is looked up by its requestId, and a VM that it made is
    kept. One of ours that another run made meanwhile is taken as it is. `keep` or `drop` then says
    what is to become of a new one. Raises the refusal, or CleanupFailed when it may have left
    something.
    """
    request_id = means.new_id()
    marked = replace(spec, labels={**spec.labels, body.REQUEST_LABEL: request_id})
    means.journal.intent(marked, zone, request_id)
    try:
        vm = means.cloud.create(marked, zone, request_id=request_id)
    except CloudError as error:
        made = _made_after_all(means, spec.name, zone, request_id, error)
        if made is None:
            raise
        vm = made
    try:
        vm = awaited(means, vm, spec.request_valid_s or 0, enough)
    except CloudRefused:
        _clean_up(means, spec.name, zone, request_id, if_absent=written.GONE)
        raise
    is_new = is_of(vm, request_id)
    if not is_new:
        means.journal.mark(request_id, written.GONE)
    return Inserted(vm, is_new)


def keep(means: Means, vm: Vm) -> None:
    """Write down that a VM that this run made is wanted: until then its intent stays open, and a killed run leaves a stray."""
    means.journal.mark(vm.labels[body.REQUEST_LABEL], written.MADE)


def is_of(vm: Vm | None, request_id: str) -> bool:
    """True when the insert of `request_id` made it."""
    return vm is not None and vm.labels.get(body.REQUEST_LABEL) == request_id


def drop(means: Means, vm: Vm) -> None:
    """Remove a VM that this run made and does not want. Raises CleanupFailed when it may go on billing."""
    request_id = vm.labels[body.REQUEST_LABEL]
    means.journal.mark(request_id, written.DELETING)
    _clean_up(means, vm.name, vm.zone, request_id, if_absent=written.GONE)


def _made_after_all(
    means: Means, name: str, zone: str, request_id: str, error: CloudError
) -> Vm | None:
    """After an insert that failed: the VM, where only its answer was lost; else None, and nothing is left of it.

    Raises what refused the insert, where its operation says more than `error` does.
    """
    ended = _ended(means, zone, request_id, error)
    if ended is not None and ended.refusal is None:
        vm = _looked_up(means, name, zone, request_id)
        if vm is not None and is_of(vm, request_id):
            return vm
    _clean_up(
        means, name, zone, request_id, if_absent=written.UNSURE if ended is None else written.GONE
    )
    if ended is not None and ended.refusal is not None and ended.refusal is not error:
        raise ended.refusal from error
    return None


def _ended(means: Means, zone: str, request_id: str, error: CloudError) -> Ended | None:
    """How the insert's operation ended; None while it is not known that it ever began, or that it is over."""
    if (
        not isinstance(error, CloudRefused)
        or error.refusal.final
        or classify(error.refusal).kind is not Kind.TRANSIENT
    ):
        return Ended(error)
    if error.refusal.code == TIMED_OUT:
        return None  # it was waited for as long as we wait
    try:
        return means.cloud.ended(zone, request_id)
    except CloudError:
        return None


def _looked_up(means: Means, name: str, zone: str, request_id: str) -> Vm | None:
    try:
        return means.cloud.get(name, zone)
    except CloudError as error:
        means.journal.mark(request_id, written.LEFT_BEHIND, error.why)
        raise left_behind("a VM may be left behind and may bill", name, zone, error) from error


def _clean_up(means: Means, name: str, zone: str, request_id: str, *, if_absent: str) -> None:
    """After a failed insert the VM may exist all the same: look, and remove what carries our requestId."""
    state = if_absent
    vm = _looked_up(means, name, zone, request_id)
    try:
        if is_of(vm, request_id):
            means.cloud.delete(name, zone, request_id=means.new_id())
            state = written.GONE
    except CloudError as error:
        means.journal.mark(request_id, written.LEFT_BEHIND, error.why)
        raise left_behind("a VM may be left behind and may bill", name, zone, error) from error
    means.journal.mark(request_id, state)


def resume(means: Means, entry: Entry) -> Vm | None:
    """What became of an open entry that no living run works on: the VM that its insert made, or None; the journal says which.

    An insert under way is waited for; a deletion that was begun, or that failed, is done again.
    """
    if entry.state == written.MADE:
        there = means.cloud.get(entry.name, entry.zone)
        # A VM can be renamed while it is stopped: it carries its request id under any name.
        if there is None and not means.cloud.list({body.REQUEST_LABEL: entry.request_id}):
            means.journal.mark(entry.request_id, written.GONE)
        return there
    if entry.state in (written.DELETING, written.LEFT_BEHIND):
        means.note(
            f"{entry.name} in {entry.zone}: an earlier run had begun to delete it; it is deleted now"
        )
        _clean_up(means, entry.name, entry.zone, entry.request_id, if_absent=written.GONE)
        return None
    means.cloud.ended(entry.zone, entry.request_id)
    vm = means.cloud.get(entry.name, entry.zone)
    if is_of(vm, entry.request_id):
        if (
            vm is not None and vm.status != WAITING
        ):  # one that waits for capacity may yet come to nothing
            means.journal.mark(entry.request_id, written.MADE)
        return vm
    means.journal.mark(entry.request_id, written.GONE)
    return None
