"""The requests for new VMs, and the reports of what they left in the cloud."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from provision.cloud.api import oslogin
from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import Created, create_vm
from provision.cloud.lifecycle.journal import MADE
from provision.cloud.lifecycle.zone_search import ZoneSearch, attempts_table
from provision.cloud.refusal import CloudRefused
from provision.core.errors import Interrupted
from provision.core.model import Event, Note, VmSpec
from provision.project.project import Project


def cloud_context(project: Project, cloud: ComputeCloud) -> CloudContext:
    """Return what creates VMs, with the project's journal and price list."""
    return CloudContext(
        cloud=cloud, journal=project.journal, emit=project.emit, prices=project.price_list
    )


def request_vm(
    project: Project, cloud: ComputeCloud, spec: VmSpec, *, width: int, search: ZoneSearch | None
) -> Created:
    """Create the VM or find it; `width` zones are requested at once, those of `search` if given.

    Requests it a second time with OS Login where a policy of the organisation demands that, which
    the project's metadata need not show. Raises as `create_vm`.
    """
    context, zones = cloud_context(project, cloud), project.settings.zones
    try:
        return create_vm(context, spec, zones, width=width, search=search)
    except CloudRefused as error:
        if not oslogin.is_required_by_policy(error):
            raise
        if project.settings.os_login == "off":
            error.fix = "set provision.os_login: auto"
            raise
        note = "a policy of the organisation demands OS Login: requesting the VM with it"
        project.emit(Note(note))
        with_os_login = replace(spec, metadata=oslogin.metadata_with_os_login(spec.metadata))
        return create_vm(context, with_os_login, zones, width=width, search=search)


def with_vm_in_notes(project: Project, name: str) -> Project:
    """Return the project with notes that carry the VM's name: several are created at once."""

    def emit(event: Event) -> None:
        project.emit(
            replace(event, host=name) if isinstance(event, Note) and not event.host else event
        )

    return replace(project, emit=emit)


@contextmanager
def reporting_requested_vms(project: Project, names: Sequence[str]) -> Iterator[None]:
    """Turn Ctrl-C in the block into `Interrupted` that lists the VMs that exist or may appear.

    Raises `Interrupted` on Ctrl-C; it reads the requests from the journal.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        entries = project.journal.open()
        requested = [entry for name in names for entry in entries if entry.name == name]
        running = "runs and bills" if project.bills else "runs"
        lines = [
            f"{entry.name} {running if entry.state == MADE else 'may be in creation'} "
            f"in {entry.zone}"
            for entry in requested
        ]
        if requested:
            left = ",".join(dict.fromkeys(entry.name for entry in requested))
            delete = f"`{project.program_argv0} vm.delete --name {left}`"
            lines.append(f"the same command continues; {delete} removes what exists")
        raise Interrupted(
            "interrupted",
            where=", ".join(names),
            why="\n".join(lines) or "nothing was requested yet",
            fix=f"{project.program_argv0} vm.list",
        ) from error


def note_zones(project: Project, all_created: Sequence[Created]) -> None:
    """Print every zone that was requested with its verbatim refusal, where the first refused.

    VMs with the same zones and refusals share a table.
    """
    names: dict[str, list[str]] = {}
    for created in all_created:
        if len(created.tried) > 1:
            names.setdefault(attempts_table(created.tried), []).append(created.vm.name)
    for table, vms in names.items():
        project.emit(Note(f"zones asked for {', '.join(vms)}:\n{table}"))
