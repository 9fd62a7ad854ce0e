"""The VM that the settings ask the cloud for."""

from __future__ import annotations

from dataclasses import replace

from provision import templating
from provision.cloud.api.images import COS_PROJECT
from provision.cloud.api.labels import IDLE_DELETE_LABEL, OWNER_LABEL
from provision.cloud.api.request_bodies import standard_metadata
from provision.cloud.market import scheduling
from provision.cloud.market.machine_choice import choose_machine_type
from provision.core.model import Facts, VmSpec
from provision.project.login import USER
from provision.project.project import Project
from provision.recipes import gpu_host, idle_texts
from provision.resources import BootFragment
from provision.resources.boot import BOOT_TEXT


def vm_spec(project: Project, name: str, *, os_login: bool) -> VmSpec:
    """Return the VM of the settings under that name, with owner label and boot metadata.

    Without OS Login its metadata contains the project's public key.
    """
    public_line = project.ensure_key_pair()
    metadata = standard_metadata(
        user=USER, public_key=public_line, user_data=user_data(project), os_login=os_login
    )
    labels = {OWNER_LABEL: project.ensure_owner()}
    if project.settings.idle_delete != "none":
        labels[IDLE_DELETE_LABEL] = project.settings.idle_delete
    return replace(vm_spec_of_settings(project, name), labels=labels, metadata=metadata)


def vm_spec_of_settings(project: Project, name: str) -> VmSpec:
    """Return the VM of the settings, without labels and metadata. Reads the settings alone."""
    settings = project.settings
    machine_type = choose_machine_type(
        settings.gpu, settings.gpu_count, settings.machine_type, settings.dataflow.machine_type
    )
    model = scheduling.provisioning_model(settings.provisioning, settings.reservation, machine_type)
    return VmSpec(
        name=name,
        machine_type=machine_type,
        gpu=settings.gpu,
        gpu_count=settings.gpu_count if settings.gpu else 0,
        disk_gb=settings.disk_gb,
        image=settings.image,
        image_project=COS_PROJECT,
        ttl_s=settings.ttl_s,
        labels={},
        metadata={},
        external_ip=settings.ssh == "direct",
        provisioning_model=model,
        termination_action=settings.ttl_action.upper(),
        request_valid_s=scheduling.capacity_wait_s(model, settings.capacity_wait_s),
        reservation=settings.reservation,
    )


def user_data(project: Project, *, powers_off: bool = True) -> str:
    """Return cloud-init user-data: the boot unit, and the boot script of the first boot.

    The steps are those of the recipe for a host with ID=cos; provisioning replaces them later.
    Without `powers_off` they omit `idle_stop`: for a machine that was not created here.
    """
    unit = templating.boot_unit(project_dir=project.project_dir)
    idle = idle_texts(project.settings, project.project_dir) if powers_off else None
    recipe = gpu_host(project.settings, boot_unit=unit, idle=idle, extras=())
    files = {"boot.sh": BOOT_TEXT}
    for resource in recipe:
        if isinstance(resource, BootFragment):
            files[f"boot.d/{resource.file}"] = resource.text(Facts(os_id="cos"))
    return templating.user_data(files, project_dir=project.project_dir)
