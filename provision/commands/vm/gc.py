"""What this toolkit made and is to go, since nobody owns it or it is stopped for too long: found, shown, removed after asking."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from provision.cloud.api import body
from provision.cloud.lifecycle import journal as written
from provision.cloud.lifecycle.create import Maker
from provision.cloud.lifecycle.journal import FileJournal
from provision.cloud.lifecycle.many import ends
from provision.cloud.lifecycle.orphans import DISK, KEY, STOPPED, VM, Stray, Survey, remove, survey
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.documents import aligned, span_or_dash
from provision.commands.vm.shared.rates import seconds_since
from provision.core.errors import (
    EXIT_WOULD_CHANGE,
    CleanupFailed,
    CloudError,
    ProvisionError,
    UsageError,
    worst_exit,
)
from provision.core.model import Note
from provision.project.login import recorded_login, remove_imported_key
from provision.project.owned_vms import list_vms_from_cloud
from provision.project.project import Project
from provision.project.records import VmRecords, key_alias
from provision.report.text import counted

Confirm = Callable[[str], bool]
_NOUNS = {VM: "VM", STOPPED: "stopped VM", DISK: "disk", KEY: "key"}
IDLE_KEY = "it opens no VM of this project any more"


def vm_gc(
    project: Project, *, yes: bool, check: bool, every_key: bool = False, confirm: Confirm | None
) -> TaskResult:
    """Find VMs and disks that carry our labels and are to go, and remove them after asking.

    To go are those that belong to no journal entry, and VMs that are stopped for longer than the
    `idle_delete` on them. `every_key` looks also at what the same user made with another project's
    key (a lost state folder, another machine): it goes by the login name alone, which several
    people may share, and the question says so. What carries no label of ours is never touched. What
    the cloud would not show is named at the end: exit 6 where it may bill for nobody, else 5.
    """
    owner = project.ensure_owner()
    user = owner.rpartition("-")[0]
    is_owner = (
        (lambda label: label.rpartition("-")[0] == user)
        if every_key
        else (lambda label: label == owner)
    )
    whose = f", made by anybody whose login name is {user}" if every_key else ""
    maker = Maker(cloud=project.connect_cloud(), journal=project.journal, emit=project.emit)
    pairs = [
        (journal, entry)
        for journal in project.journals_of_all_projects()
        for entry in journal.open()
    ]
    busy = [entry.name for journal, entry in pairs if journal.is_claimed(entry.name)]
    found = survey(maker, is_owner, [entry for _, entry in pairs], busy)
    # A run that began after the journals were read wrote its intent before its VM could be listed.
    still = [
        stray
        for stray in found.strays
        if not _is_worked_on(project, stray) and not _was_made(project, stray)
    ]
    found = replace(found, strays=(*still, *_idle_key(project, maker, still)))
    if check:
        return _found(found, [EXIT_WOULD_CHANGE] if found.strays else [])
    for journal, entry in pairs:
        if entry in found.settled and not journal.is_claimed(entry.name):
            journal.mark(entry.request_id, written.GONE)
    if not found.strays:
        return _found(found, [])
    project.emit(Note(_table(found.strays)))
    if not yes and (confirm is None or not confirm(f"Delete {_counted(found.strays)}{whose}?")):
        for error in found.unseen:
            project.emit(Note(str(error)))
        why = "there is no terminal to ask on" if confirm is None else "the answer was no"
        raise UsageError("nothing was deleted", why=why, fix=f"{project.program_argv0} vm.gc --yes")
    return _removed(project, maker, found)


def _is_worked_on(project: Project, stray: Stray) -> bool:
    return any(journal.is_claimed(stray.name) for journal in project.journals_of_all_projects())


def _was_made(project: Project, stray: Stray) -> bool:
    """A run of this machine finished making this very VM since the survey began."""
    request_id = (
        stray.vm.labels.get(body.REQUEST_LABEL)
        if stray.vm is not None and stray.kind == VM
        else None
    )
    return any(
        entry.request_id == request_id and entry.state == written.MADE
        for journal in project.journals_of_all_projects()
        for entry in journal.open()
    )


def _idle_key(project: Project, maker: Maker, strays: Sequence[Stray]) -> list[Stray]:
    """This project's key in a login profile (OS Login), when all of ours that it opened is gone or is to go."""
    imported = recorded_login(project)
    if imported is None or not imported.key:
        return []
    known, going = (
        list_vms_from_cloud(project, maker.cloud),
        {(stray.zone, stray.name) for stray in strays},
    )
    stays = known.hidden or any((vm.zone, vm.name) not in going for vm in known.vms)
    if stays or any(maker.journal.is_claimed(entry.name) for entry in maker.journal.open()):
        return []
    return [Stray(kind=KEY, name=imported.account, zone="", why=IDLE_KEY, owner=imported.key)]


def _log_out(project: Project, maker: Maker) -> bool:
    """Take the key out of its profile; False when another run did."""
    imported = recorded_login(project)
    if imported is None:
        return False
    try:
        remove_imported_key(project, maker.cloud, imported)
    except CloudError as error:
        fix = f"gcloud compute os-login ssh-keys remove --key-file {shlex.quote(str(project.home / 'key.pub'))}"
        what = "this project's key stays in the login profile"
        raise CleanupFailed(
            what, where=imported.account, why=error.why or error.what, fix=fix
        ) from error
    return True


def _removed(project: Project, maker: Maker, found: Survey) -> TaskResult:
    """What was removed, side by side. Minutes may have passed since the survey: what a run has made its own meanwhile is left alone."""

    def away(stray: Stray) -> bool:
        journal = _journal_with(project, stray) or project.journal
        with journal.claim(stray.name, maker.note):
            if _was_made(project, stray):
                maker.note(f"{stray.name} is wanted by now: left alone")
                return False
            is_gone = remove(replace(maker, journal=journal), stray)
        if is_gone:
            _forget(project, journal, stray)
        return is_gone

    acts = ends([stray for stray in found.strays if stray.kind != KEY], away)
    if all(act.value for act in acts):  # what may be left behind is still to be opened
        acts += ends(
            [stray for stray in found.strays if stray.kind == KEY],
            lambda _: _log_out(project, maker),
        )
    removed = [act.item for act in acts if act.value]
    lines = [
        f"deleted the {_NOUNS[stray.kind]} {stray.name} ({stray.zone or 'OS Login'})"
        for stray in removed
    ]
    return _end(
        found,
        removed,
        [act.error for act in acts if act.error is not None],
        lines or ["nothing was deleted"],
        [],
    )


def _journal_with(project: Project, stray: Stray) -> FileJournal | None:
    """The journal that names it: with `every_key` that of another project folder."""
    for journal in project.journals_of_all_projects():
        if stray.request_id and any(
            entry.request_id == stray.request_id for entry in journal.open()
        ):
            return journal
    return None


def _forget(project: Project, journal: FileJournal, stray: Stray) -> None:
    records = VmRecords(journal.folder / "vms.json")
    record = records.get(stray.name)
    if stray.vm is not None and record is not None and record.instance_id == stray.vm.instance_id:
        records.remove(stray.name)
        project.known_hosts.forget(key_alias(stray.vm.instance_id))


def _found(found: Survey, codes: list[int]) -> TaskResult:
    lines = (
        [_table(found.strays)]
        if found.strays
        else []
        if found.unseen
        else ["nothing of ours is left behind"]
    )
    return _end(found, [], [], lines, codes)


def _end(
    found: Survey,
    removed: Sequence[Stray],
    errors: Sequence[ProvisionError],
    lines: Sequence[str],
    codes: Sequence[int],
) -> TaskResult:
    """What was found, what became of it, and beside it what failed and what could not be looked at."""
    failed = (*errors, *found.unseen)
    document = {
        "strays": [stray.as_dict() for stray in found.strays],
        "deleted": [stray.as_dict() for stray in removed],
        "unseen": [error.as_dict() for error in found.unseen],
        "changed": bool(removed) or EXIT_WOULD_CHANGE in codes,
    }
    if failed:
        document["error"] = failed[0].as_dict()
    return TaskResult(
        document,
        worst_exit([*codes, *(error.exit_code for error in failed)]),
        "\n".join(lines),
        failed,
    )


def _counted(strays: Sequence[Stray]) -> str:
    counts = [(sum(stray.kind == kind for stray in strays), noun) for kind, noun in _NOUNS.items()]
    return " and ".join(counted(count, noun) for count, noun in counts if count)


def _table(strays: Sequence[Stray]) -> str:
    ahead_s = next((stray.vm.ahead_s for stray in strays if stray.vm is not None), 0.0)
    ages = [span_or_dash(seconds_since(stray.created, ahead_s)) for stray in strays]
    rows = [
        (stray.name, _NOUNS[stray.kind], stray.zone or "-", age, stray.why)
        for stray, age in zip(strays, ages, strict=True)
    ]
    return aligned([("name", "what", "zone", "age", "why"), *rows])
