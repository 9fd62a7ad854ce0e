"""`vm.gc`: orphans deleted, and VMs that are stopped for too long."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from provision.cloud.api.labels import REQUEST_LABEL
from provision.cloud.lifecycle.batch import collect_results
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.journal import GONE, MADE, Entry, Journal
from provision.cloud.lifecycle.orphan_removal import remove_orphan
from provision.cloud.lifecycle.orphans import (
    DISK,
    KEY,
    STOPPED,
    VM,
    Orphan,
    OrphanReport,
    fetch_orphans,
)
from provision.cloud.lifecycle.vm_times import seconds_since
from provision.commands.shared.result import TaskResult
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
from provision.report.table import format_table, span_or_dash
from provision.report.text import count_phrase

Confirm = Callable[[str], bool]
_NOUNS = {VM: "VM", STOPPED: "stopped VM", DISK: "disk", KEY: "key"}
UNUSED_KEY = "it opens no VM of this project any more"


def vm_gc(
    project: Project, *, yes: bool, check: bool, every_key: bool = False, confirm: Confirm | None
) -> TaskResult:
    """Find orphans and VMs stopped for too long, and delete them after confirmation.

    Orphans are VMs and disks with this toolkit's labels and without a journal entry; stopped VMs go
    by their own `idle_delete`. `every_key` includes what the same login name created with another
    project's key (a lost state folder, another machine); several people may share that name, and
    the question mentions it. Other labels are never touched.

    The exit code is 6 where the cloud did not describe something that may bill as an orphan, 5
    where it did not describe something else. Raises `UsageError` when the user did not confirm.
    """
    context = CloudContext(
        cloud=project.connect_cloud(), journal=project.journal, emit=project.emit
    )
    user = project.ensure_owner().rpartition("-")[0]
    entries = _open_entries(project)
    report = _fetch_orphans(project, context, entries, every_key=every_key)
    if check:
        return _report(report, [EXIT_WOULD_CHANGE] if report.orphans else [])
    for journal, entry in entries:
        if entry in report.finished_entries and not journal.is_claimed(entry.name):
            journal.mark(entry.request_id, GONE)
    if not report.orphans:
        return _report(report, [])
    project.emit(Note(_table(report.orphans)))
    if not yes:
        whose = f", created by any user with the login name {user}" if every_key else ""
        _require_confirmation(project, report, f"Delete {_counts(report.orphans)}{whose}?", confirm)
    return _delete_all(project, context, report)


def _open_entries(project: Project) -> list[tuple[Journal, Entry]]:
    """The open entries of all journals of this machine, each with its journal."""
    return [
        (journal, entry)
        for journal in project.journals_of_all_projects()
        for entry in journal.open()
    ]


def _fetch_orphans(
    project: Project,
    context: CloudContext,
    entries: Sequence[tuple[Journal, Entry]],
    *,
    every_key: bool,
) -> OrphanReport:
    """Compare the cloud with the journals, and leave out what a run works on or has completed.

    A run that began after the journals were read wrote its intent before its VM could be listed, so
    the journals are read once more afterwards.
    """
    owner = project.ensure_owner()
    user = owner.rpartition("-")[0]

    def is_owner(label: str) -> bool:
        return label.rpartition("-")[0] == user if every_key else label == owner

    claimed = [entry.name for journal, entry in entries if journal.is_claimed(entry.name)]
    report = fetch_orphans(context, is_owner, [entry for _, entry in entries], claimed)
    orphans = [
        orphan
        for orphan in report.orphans
        if not _is_claimed(project, orphan) and not _is_completed(project, orphan)
    ]
    return replace(report, orphans=(*orphans, *_fetch_unused_key(project, context, orphans)))


def _is_claimed(project: Project, orphan: Orphan) -> bool:
    """Whether a run of this machine creates or deletes a VM of this name now."""
    return any(journal.is_claimed(orphan.name) for journal in project.journals_of_all_projects())


def _is_completed(project: Project, orphan: Orphan) -> bool:
    """Whether a run of this machine has finished creating this very VM."""
    if orphan.vm is None or orphan.kind != VM:
        return False
    request_id = orphan.vm.labels.get(REQUEST_LABEL)
    return any(
        entry.request_id == request_id and entry.state == MADE
        for _, entry in _open_entries(project)
    )


def _fetch_unused_key(
    project: Project, context: CloudContext, orphans: Sequence[Orphan]
) -> list[Orphan]:
    """The project's key in an OS Login profile, where no VM remains that it opens."""
    login = recorded_login(project)
    if login is None or not login.key:
        return []
    owned = list_vms_from_cloud(project, context.cloud)
    deleted = {(orphan.zone, orphan.name) for orphan in orphans}
    if owned.hidden or any((vm.zone, vm.name) not in deleted for vm in owned.vms):
        return []
    if any(context.journal.is_claimed(entry.name) for entry in context.journal.open()):
        return []
    return [Orphan(kind=KEY, name=login.account, zone="", why=UNUSED_KEY, owner=login.key)]


def _require_confirmation(
    project: Project, report: OrphanReport, question: str, confirm: Confirm | None
) -> None:
    if confirm is not None and confirm(question):
        return
    for error in report.errors:
        project.emit(Note(str(error)))
    why = "there is no terminal to ask on" if confirm is None else "the answer was no"
    raise UsageError("nothing was deleted", why=why, fix=f"{project.program_argv0} vm.gc --yes")


# --- deletion -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Deletion:
    """Deletes one orphan under its claim."""

    project: Project
    context: CloudContext

    def delete(self, orphan: Orphan) -> bool:
        """Delete the orphan; False when it was gone, or a run has completed it meanwhile.

        Minutes may have passed since it was found.
        """
        journal = self._journal_with(orphan) or self.project.journal
        with journal.claim(orphan.name, self.context.note):
            if _is_completed(self.project, orphan):
                self.context.note(f"{orphan.name} is in use by now: left alone")
                return False
            is_deleted = remove_orphan(replace(self.context, journal=journal), orphan)
        if is_deleted:
            self._forget(journal, orphan)
        return is_deleted

    def _journal_with(self, orphan: Orphan) -> Journal | None:
        """The journal with its request: with `every_key` that of another project folder."""
        if not orphan.request_id:
            return None
        entries = _open_entries(self.project)
        return next((log for log, entry in entries if entry.request_id == orphan.request_id), None)

    def _forget(self, journal: Journal, orphan: Orphan) -> None:
        """Remove the record of that project, and the pinned keys."""
        records = VmRecords(journal.folder / "vms.json")
        record = records.get(orphan.name)
        if orphan.vm is None or record is None or record.instance_id != orphan.vm.instance_id:
            return
        records.remove(orphan.name)
        self.project.known_hosts.forget(key_alias(orphan.vm.instance_id))

    def remove_key(self, _orphan: Orphan) -> bool:
        """Remove the project's key from its login profile; False when another run did.

        Raises `CleanupFailed` when it stays there.
        """
        login = recorded_login(self.project)
        if login is None:
            return False
        try:
            remove_imported_key(self.project, self.context.cloud, login)
        except CloudError as error:
            key_file = shlex.quote(f"{self.project.key_path}.pub")
            raise CleanupFailed(
                "this project's key stays in the login profile",
                where=login.account,
                why=error.why or error.what,
                fix=f"gcloud compute os-login ssh-keys remove --key-file {key_file}",
            ) from error
        return True


def _delete_all(project: Project, context: CloudContext, report: OrphanReport) -> TaskResult:
    """Delete the orphans side by side; the key last, and only when all of them are deleted."""
    deletion = _Deletion(project, context)
    acts = collect_results(
        [orphan for orphan in report.orphans if orphan.kind != KEY], deletion.delete
    )
    if all(act.value for act in acts):  # a VM that is left has to be opened yet
        keys = [orphan for orphan in report.orphans if orphan.kind == KEY]
        acts += collect_results(keys, deletion.remove_key)
    deleted = [act.item for act in acts if act.value]
    lines = [
        f"deleted the {_NOUNS[orphan.kind]} {orphan.name} ({orphan.zone or 'OS Login'})"
        for orphan in deleted
    ]
    errors = [act.error for act in acts if act.error is not None]
    return _result(report, deleted, errors, lines or ["nothing was deleted"], [])


# --- results --------------------------------------------------------------------------------------


def _report(report: OrphanReport, codes: Sequence[int]) -> TaskResult:
    """The result without a deletion."""
    lines = [] if report.errors else ["no orphans"]
    if report.orphans:
        lines = [_table(report.orphans)]
    return _result(report, [], [], lines, codes)


def _result(
    report: OrphanReport,
    deleted: Sequence[Orphan],
    errors: Sequence[ProvisionError],
    lines: Sequence[str],
    codes: Sequence[int],
) -> TaskResult:
    """What was found and deleted, the errors, and what the cloud did not describe."""
    all_errors = (*errors, *report.errors)
    document = {
        "strays": [orphan.as_dict() for orphan in report.orphans],
        "deleted": [orphan.as_dict() for orphan in deleted],
        "unseen": [error.as_dict() for error in report.errors],
        "changed": bool(deleted) or EXIT_WOULD_CHANGE in codes,
    }
    if all_errors:
        document["error"] = all_errors[0].as_dict()
    code = worst_exit([*codes, *(error.exit_code for error in all_errors)])
    return TaskResult(document, code, "\n".join(lines), all_errors)


def _counts(orphans: Sequence[Orphan]) -> str:
    counts = [(sum(one.kind == kind for one in orphans), noun) for kind, noun in _NOUNS.items()]
    return " and ".join(count_phrase(count, noun) for count, noun in counts if count)


def _table(orphans: Sequence[Orphan]) -> str:
    ahead_s = next((orphan.vm.ahead_s for orphan in orphans if orphan.vm is not None), 0.0)
    rows = [
        (
            orphan.name,
            _NOUNS[orphan.kind],
            orphan.zone or "-",
            span_or_dash(seconds_since(orphan.created, ahead_s)),
            orphan.why,
        )
        for orphan in orphans
    ]
    return format_table([("name", "what", "zone", "age", "why"), *rows])
