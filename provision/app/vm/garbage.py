"""What this toolkit made and nobody owns: found, shown, removed after asking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from provision.app import trust
from provision.app.clouds import cloud_of, every_journal, journal_of, mine, owner_of
from provision.app.session import Done, Session
from provision.app.state import VmRecords
from provision.app.vm.documents import aligned, say_overdue, span
from provision.app.vm.rates import seconds_since
from provision.cloud import body
from provision.cloud import journal as written
from provision.cloud.create import Maker
from provision.cloud.strays import DISK, Stray, Survey, remove, settle, survey
from provision.errors import EXIT_WOULD_CHANGE, CleanupFailed, UsageError, worst_exit
from provision.hosts.keys import ensure_key
from provision.model import Note

Confirm = Callable[[str], bool]


def vm_gc(session: Session, *, yes: bool, check: bool, every_key: bool = False, confirm: Confirm | None) -> Done:
    """Find VMs and disks that carry our labels and belong to no journal entry, and remove them after asking.

    `every_key` looks also at what the same user made with another project's key (a lost state folder, another machine).
    What carries no label of ours is never touched.
    """
    owner = owner_of(ensure_key(session.home / "key"))
    user = owner.rpartition("-")[0]
    is_owner = (lambda label: label.rpartition("-")[0] == user) if every_key else (lambda label: label == owner)
    maker = Maker(cloud=cloud_of(session), journal=journal_of(session), emit=session.emit)
    say_overdue(session, mine(session, maker.cloud))
    pairs = [(journal, entry) for journal in every_journal(session) for entry in journal.open()]
    busy = [entry.name for journal, entry in pairs if journal.is_claimed(entry.name)]
    found = survey(maker, is_owner, [entry for _, entry in pairs], busy)
    # A run that began after the journals were read wrote its intent before its VM could be listed.
    still = [stray for stray in found.strays if not _is_worked_on(session, stray) and not _was_made(session, stray)]
    found = replace(found, strays=tuple(still))
    if check:
        return _found(found, EXIT_WOULD_CHANGE if found.strays else 0)
    here = {entry.request_id for entry in maker.journal.open()}
    settle(maker, [entry for entry in found.settled if entry.request_id in here])
    if not found.strays:
        return _found(found, 0)
    session.emit(Note(_table(found.strays)))
    if not yes and (confirm is None or not confirm(f"Delete {_counted(found.strays)}?")):
        why = "there is no terminal to ask on" if confirm is None else "the answer was no"
        raise UsageError("nothing was deleted", why=why, fix=f"{session.program_argv0} vm.gc --yes")
    return _removed(session, maker, found)


def _is_worked_on(session: Session, stray: Stray) -> bool:
    return any(journal.is_claimed(stray.name) for journal in every_journal(session))


def _was_made(session: Session, stray: Stray) -> bool:
    """A run of this machine finished making this very VM since the survey began."""
    request_id = stray.vm.labels.get(body.REQUEST_LABEL) if stray.vm is not None else None
    return any(
        entry.request_id == request_id and entry.state == written.MADE for journal in every_journal(session) for entry in journal.open()
    )


def _removed(session: Session, maker: Maker, found: Survey) -> Done:
    """What was removed. Minutes may have passed since the survey: what a run has made its own meanwhile is left alone."""
    removed: list[Stray] = []
    errors: list[CleanupFailed] = []
    for stray in found.strays:
        try:
            with maker.journal.claim(stray.name, maker.note):
                if _was_made(session, stray):
                    session.emit(Note(f"{stray.name} is wanted by now: left alone"))
                elif remove(maker, stray):
                    removed.append(stray)
        except CleanupFailed as error:
            errors.append(error)
    for stray in removed:
        _forget(session, stray)
    document = {"strays": [stray.as_dict() for stray in found.strays], "deleted": [stray.as_dict() for stray in removed]}
    failed = {"error": errors[0].as_dict()} if errors else {}
    text = "\n".join([*(f"deleted {stray.kind} {stray.name} ({stray.zone})" for stray in removed), *map(str, errors)])
    return Done({**document, "changed": bool(removed), **failed}, worst_exit([error.exit_code for error in errors]), text)


def _forget(session: Session, stray: Stray) -> None:
    records = VmRecords(session.home / "vms.json")
    record = records.get(stray.name)
    if stray.vm is not None and record is not None and record.instance_id == stray.vm.instance_id:
        records.remove(stray.name)
        trust.known_hosts(session).forget(trust.key_alias(stray.vm.instance_id))


def _found(found: Survey, exit_code: int) -> Done:
    strays = [stray.as_dict() for stray in found.strays]
    text = _table(found.strays) if found.strays else "nothing of ours is left behind"
    return Done({"strays": strays, "deleted": [], "changed": bool(strays)}, exit_code, text)


def _counted(strays: Sequence[Stray]) -> str:
    vms, disks = (sum(stray.kind == kind for stray in strays) for kind in ("vm", DISK))
    words = [f"{count} {noun}{'s' if count > 1 else ''}" for count, noun in ((vms, "VM"), (disks, "disk")) if count]
    return " and ".join(words)


def _table(strays: Sequence[Stray]) -> str:
    rows = [(stray.kind, stray.name, stray.zone, span(seconds_since(stray.created)), stray.why) for stray in strays]
    return aligned([("what", "name", "zone", "age", "why"), *rows])
