"""Which VMs a task means, and the same done to each of them at once."""

from __future__ import annotations

import fnmatch
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from provision.app.clouds import look, owner_of, refuse_orphan
from provision.app.session import Done, Session
from provision.app.vm.documents import document
from provision.cloud.ports import ComputeCloud
from provision.errors import CloudNotFound, Interrupted, ProvisionError, UsageError, worst_exit
from provision.hosts.keys import ensure_key
from provision.model import Vm

AT_ONCE = 32
T = TypeVar("T")
Item = TypeVar("Item")


def names_of(session: Session, text: str) -> list[str]:
    """The names and patterns of `--name a,b-*`. A host of the settings is refused."""
    names = text.replace(",", " ").split()
    if not names:
        raise UsageError("--name names no VM", why="it is empty", fix=f"{session.program_argv0} vm.list")
    for name in names:
        if name in session.settings.hosts:
            why = "only VMs that were made here are asked of the cloud"
            raise UsageError(f"{name} is a host of the settings", where=name, why=why, fix=f"{session.program_argv0} vm.list")
    return list(dict.fromkeys(names))


def is_pattern(name: str) -> bool:
    """Whether it may fit several names."""
    return any(sign in name for sign in "*?[")


def chosen(session: Session, cloud: ComputeCloud, text: str, verb: str) -> list[Vm]:
    """Our VMs that `--name` means, by zone and name; one call. `verb` is what gcloud would be asked to do.

    Raises CloudNotFound for a name that fits none, CloudError when one of that name is hidden or carries another label.
    """
    names = names_of(session, text)
    owner = owner_of(ensure_key(session.home / "key"))
    listed = look(session, cloud)
    found = listed.vms
    for name in names:
        if not any(fnmatch.fnmatchcase(vm.name, name) for vm in found):
            listed.refuse_hidden(session, name)
            if not is_pattern(name):
                refuse_orphan(session, cloud, name, owner, verb)
            known = ", ".join(vm.name for vm in found)
            why = f"VMs of this project: {known}" if known else "none carries this project's label"
            raise CloudNotFound(f"there is no VM named {name}", why=why, fix=f"{session.program_argv0} vm.list")
    return [vm for vm in found if any(fnmatch.fnmatchcase(vm.name, name) for name in names)]


@dataclass(frozen=True)
class Act(Generic[Item, T]):
    """What came of one thing (a VM, or a name): its value, or the error."""

    item: Item
    value: T | None = None
    error: ProvisionError | None = None


def each(items: Sequence[Item], work: Callable[[Item], T]) -> list[Act[Item, T]]:
    """`work` on every item, several at once; the ends in the order of `items`.

    A single one is worked on in this very thread and its error raised. Ctrl-C ends the wait at once: what the cloud was
    asked for goes on there.
    """
    if len(items) == 1:
        return [Act(items[0], work(items[0]))]
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[int, Act[Item, T] | BaseException]] = queue.SimpleQueue()
    for index in range(len(items)):
        todo.put(index)

    def worker() -> None:
        while True:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((index, Act(items[index], work(items[index]))))
            except ProvisionError as error:
                ended.put((index, Act(items[index], error=error)))
            except BaseException as error:  # noqa: BLE001 - handed to who waits
                ended.put((index, error))

    for _ in range(min(AT_ONCE, len(items))):
        threading.Thread(target=worker, daemon=True).start()
    return _gathered(len(items), ended)


def _gathered(count: int, ended: queue.SimpleQueue[tuple[int, Act[Item, T] | BaseException]]) -> list[Act[Item, T]]:
    found: dict[int, Act[Item, T]] = {}
    try:
        while len(found) < count:
            index, act = ended.get()
            if isinstance(act, BaseException):
                raise act
            found[index] = act
    except KeyboardInterrupt:
        why = f"{len(found)} of {count} were done; what the cloud was asked for goes on there"
        raise Interrupted("interrupted", why=why, fix="run the same command again") from None
    return [found[index] for index in range(count)]


def acted(acts: Sequence[Act[Vm, tuple[Vm, bool]]], says: Callable[[Vm, bool], str], **more: Any) -> Done:
    """The end of a task that changes VMs: each VM with `changed`, and with its error where it has one."""
    rows, lines, codes = [], [], []
    for act in acts:
        if act.error is not None:
            rows.append({**document(act.item), "changed": False, "error": act.error.as_dict()})
            lines.append(str(act.error))
            codes.append(act.error.exit_code)
        elif act.value is not None:
            vm, changed = act.value
            rows.append({**document(vm), "changed": changed})
            lines.append(says(vm, changed))
    errors = [row["error"] for row in rows if "error" in row]
    failed = {"error": errors[0]} if errors else {}
    changed = any(row["changed"] for row in rows)
    return Done({"vms": rows, "changed": changed, **more, **failed}, worst_exit(codes), "\n".join(lines))
