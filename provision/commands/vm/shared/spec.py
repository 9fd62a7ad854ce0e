"""What the settings ask the cloud for, the asking, and what is told of the zones that were asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from provision import templating
from provision.cloud.api import body, oslogin
from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.create import HALTED, Created, Maker, fits
from provision.cloud.lifecycle.journal import MADE
from provision.cloud.lifecycle.search import Search, table_of
from provision.cloud.market import catalog, scheduling
from provision.cloud.refusal import CloudRefused
from provision.core.errors import Interrupted
from provision.core.model import Facts, Note, Vm, VmSpec
from provision.hosts.keys import KeyPair
from provision.project.login import USER
from provision.project.project import Project
from provision.recipes import gpu_host, idle_texts
from provision.resources import BootFragment
from provision.resources.boot import BOOT_TEXT


def spec_of(project: Project, name: str, key: KeyPair, *, os_login: bool) -> VmSpec:
    """What the settings ask the cloud for, under that name; the key is in its metadata, or with OS Login is not."""
    metadata = body.standard_metadata(
        user=USER, public_key=key.public_line, user_data=user_data(project), os_login=os_login
    )
    idle = project.settings.idle_delete
    labels = {body.OWNER_LABEL: project.ensure_owner()} | (
        {} if idle == "none" else {body.IDLE_DELETE_LABEL: idle}
    )
    return replace(wanted(project, name), labels=labels, metadata=metadata)


def wanted(project: Project, name: str) -> VmSpec:
    """The VM that the settings ask for, without what makes it ours and what its boot needs."""
    settings = project.settings
    machine_type = catalog.machine_for(
        settings.gpu, settings.gpu_count, settings.machine_type, settings.dataflow.machine_type
    )
    model = scheduling.model_for(settings.provisioning, settings.reservation, machine_type)
    return VmSpec(
        name=name,
        machine_type=machine_type,
        gpu=settings.gpu,
        gpu_count=settings.gpu_count if settings.gpu else 0,
        disk_gb=settings.disk_gb,
        image=settings.image,
        image_project=body.COS_PROJECT,
        ttl_s=settings.ttl_s,
        labels={},
        metadata={},
        external_ip=settings.ssh == "direct",
        provisioning_model=model,
        termination_action=settings.ttl_action.upper(),
        request_valid_s=scheduling.wait_for(model, settings.capacity_wait_s),
        reservation=settings.reservation,
    )


def user_data(project: Project, *, powers_off: bool = True) -> str:
    """cloud-init user-data: the boot unit, and a seed of the boot script for the first boot.

    The steps are those of the recipe for a host that says ID=cos; what provisioning writes later
    replaces the seed. Without `powers_off` there is no `idle_stop` in it: for a machine that was
    not made here.
    """
    unit = templating.boot_unit(project_dir=project.project_dir)
    idle = idle_texts(project.settings, project.project_dir) if powers_off else None
    recipe = gpu_host(project.settings, boot_unit=unit, idle=idle, extras=())
    files = {"boot.sh": BOOT_TEXT}
    for resource in recipe:
        if isinstance(resource, BootFragment):
            files[f"boot.d/{resource.file}"] = resource.text(Facts(os_id="cos"))
    return templating.user_data(files, project_dir=project.project_dir)


def maker_of(project: Project, cloud: ComputeCloud) -> Maker:
    """Who makes VMs: with the project's journal and the price list of the settings."""
    return Maker(cloud=cloud, journal=project.journal, emit=project.emit, prices=project.price_list)


def would_follow(spec: VmSpec, vm: Vm) -> str | None:
    """What would be done before a VM that is there can be looked into; None for one that runs. Raises CloudError for another shape."""
    fits(spec, vm)
    if vm.status in HALTED:
        return f"would start {vm.name} in {vm.zone}"
    return (
        None
        if vm.status == "RUNNING"
        else f"would wait for {vm.name} in {vm.zone}, which is {vm.status}"
    )


@contextmanager
def telling_what_bills(project: Project, names: Sequence[str]) -> Iterator[None]:
    """Ctrl-C while VMs are made says which of them exist or may appear: the journal has what was asked for."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        known = project.journal.open()
        asked = [entry for name in names for entry in known if entry.name == name]
        runs = "runs" if project.settings.cloud == "mock" else "runs and bills"
        lines = [
            f"{entry.name} {runs if entry.state == MADE else 'may be in the making'} in {entry.zone}"
            for entry in asked
        ]
        left = ",".join(dict.fromkeys(entry.name for entry in asked))
        if asked:
            lines.append(
                f"the same command continues; `{project.program_argv0} vm.delete --name {left}` removes what is there"
            )
        why = "\n".join(lines) or "nothing was asked for yet"
        raise Interrupted(
            "interrupted", where=", ".join(names), why=why, fix=f"{project.program_argv0} vm.list"
        ) from error


def made(
    project: Project, cloud: ComputeCloud, spec: VmSpec, *, width: int, search: Search | None = None
) -> Created:
    """The VM, made or found, `width` zones asked at once, in the zones of a `search` that was foretold.

    It is asked for once more where a policy of the organisation wants OS Login, which the project's
    metadata need not say.
    """
    try:
        return maker_of(project, cloud).create(
            spec, project.settings.zones, width=width, search=search
        )
    except CloudRefused as error:
        if not oslogin.is_forced(error):
            raise
        if project.settings.os_login == "off":
            error.fix = "set provision.os_login: auto"
            raise
        project.emit(Note("a policy of the organisation wants OS Login: asking for the VM with it"))
        asked = replace(spec, metadata=oslogin.instead_of_key(spec.metadata))
        return maker_of(project, cloud).create(
            asked, project.settings.zones, width=width, search=search
        )


def tell_zones(project: Project, all_created: Sequence[Created]) -> None:
    """Every zone that was asked with its verbatim reason, where it was not the first that took the VM; what several share, once."""
    names: dict[str, list[str]] = {}
    for created in all_created:
        if len(created.tried) > 1:
            names.setdefault(table_of(created.tried), []).append(created.vm.name)
    for table, asked in names.items():
        project.emit(Note(f"zones asked for {', '.join(asked)}:\n{table}"))
