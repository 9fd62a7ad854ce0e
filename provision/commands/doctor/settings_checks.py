"""Checks of the settings: what they ask for, what is unusual about it, what it costs."""

from __future__ import annotations

from provision.cloud.market import catalog
from provision.cloud.market.catalog import Shape
from provision.cloud.market.plan import price_line
from provision.cloud.market.shape_rules import driver_branch
from provision.cloud.market.zone_order import EVERYWHERE
from provision.commands.vm.shared.vm_spec import vm_spec_of_settings
from provision.core.model import VmSpec
from provision.project.project import Project
from provision.report.checks import Check, Verdict


def settings_checks(project: Project) -> list[Check]:
    """Return a check that describes the VM of the settings, and warnings for unusual settings.

    Invalid settings end the task before any check.
    """
    settings, spec = project.settings, vm_spec_of_settings(project, project.settings.name)
    place = "the mock" if settings.cloud == "mock" else f"project {settings.project}"
    what = f"{spec.name}: {Shape.of(spec)}, {spec.disk_gb} GB, {spec.image}, in {place}"
    checks = [Check("settings", Verdict.OK, what), *_dataflow_checks(project, spec)]
    if spec.ttl_s is None:
        what = "no time to live: the cloud never stops the VM"
        why = "a forgotten VM bills until a user deletes it"
        checks.append(Check("ttl", Verdict.WARN, what, why, "set provision.ttl: 8h"))
    return checks


def _dataflow_checks(project: Project, spec: VmSpec) -> list[Check]:
    job = project.settings.dataflow.machine_type
    if not job or job == spec.machine_type:
        return []
    why = (
        f"the VM is {spec.machine_type}: another number of vCPUs "
        "means another number of SDK processes on the GPU"
    )
    what = f"the Dataflow job runs on {job}"
    return [Check("dataflow", Verdict.WARN, what, why, "remove provision.machine_type")]


def driver_checks(project: Project) -> list[Check]:
    """Return the check whether the configured driver supports the GPU; none without a GPU."""
    settings = project.settings
    if settings.gpu is None:
        return []
    gpu, branch = catalog.gpu_type(settings.gpu), driver_branch(settings.driver)
    newest = gpu.max_driver
    if newest and (settings.driver == "latest" or (branch is not None and branch > newest)):
        why = (
            f"R{newest} is taken to be the last branch that drives {gpu.accelerator} "
            "(inferred from NVIDIA's support policy)"
        )
        what = f"the driver {settings.driver} may be too new"
        return [Check("driver", Verdict.WARN, what, why, f"set provision.driver: R{newest}")]
    needed = f", R{gpu.min_driver} or newer is needed" if gpu.min_driver else ""
    return [Check("driver", Verdict.OK, f"{settings.driver}{needed}")]


def price_checks(project: Project) -> list[Check]:
    """Return the price in the first zone or region of the settings."""
    place = project.settings.zones[0]
    if place == EVERYWHERE:
        what = "depends on the region, and the settings name none"
        return [Check("price", Verdict.UNKNOWN, what, "", f"{project.program_argv0} vm.offers")]
    zone = place if place[-2:-1] == "-" else f"{place}-a"
    spec = vm_spec_of_settings(project, project.settings.name)
    line = price_line(spec, zone, project.price_list).removeprefix("price: ")
    if line.startswith("unknown: "):
        what, fix = line.removeprefix("unknown: "), "set provision.prices to a list of yours"
        return [Check("price", Verdict.UNKNOWN, what, "nothing is guessed", fix)]
    return [Check("price", Verdict.OK, line)]
