"""The use cases: each composes settings, cloud, hosts, recipes and engine, and returns a `Done`.

They are looked up when first called, so that a task pays only for what it uses (google alone takes a second to import).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from provision.app.session import Done, Session, Targets

if TYPE_CHECKING:
    from provision.app.checkup import doctor as doctor
    from provision.app.demo import demo as demo
    from provision.app.dev.container import dev_devcontainer as dev_devcontainer
    from provision.app.dev.container import dev_down as dev_down
    from provision.app.dev.container import dev_exec as dev_exec
    from provision.app.dev.container import dev_run as dev_run
    from provision.app.dev.container import dev_shell as dev_shell
    from provision.app.dev.container import dev_up as dev_up
    from provision.app.image import image_build as image_build
    from provision.app.image import image_render as image_render
    from provision.app.inventory import inventory_ansible as inventory_ansible
    from provision.app.inventory import inventory_list as inventory_list
    from provision.app.mock import mock_down as mock_down
    from provision.app.mock import mock_status as mock_status
    from provision.app.mock import mock_up as mock_up
    from provision.app.mps.advice import mps_explain as mps_explain
    from provision.app.mps.advice import mps_plan as mps_plan
    from provision.app.mps.benchmark import mps_bench as mps_bench
    from provision.app.mps.checks import mps_doctor as mps_doctor
    from provision.app.mps.control import mps_disable as mps_disable
    from provision.app.mps.control import mps_enable as mps_enable
    from provision.app.mps.control import mps_status as mps_status
    from provision.app.mps.watch import mps_top as mps_top
    from provision.app.mps.wishes import mps_asked as mps_asked
    from provision.app.vm.costs import vm_cost as vm_cost
    from provision.app.vm.creation import vm_create as vm_create
    from provision.app.vm.existing import vm_delete as vm_delete
    from provision.app.vm.existing import vm_list as vm_list
    from provision.app.vm.existing import vm_show as vm_show
    from provision.app.vm.garbage import vm_gc as vm_gc
    from provision.app.vm.hosts import vm_copy as vm_copy
    from provision.app.vm.hosts import vm_provision as vm_provision
    from provision.app.vm.hosts import vm_ssh as vm_ssh
    from provision.app.vm.hosts import vm_ssh_config as vm_ssh_config
    from provision.app.vm.hosts import vm_user_data as vm_user_data
    from provision.app.vm.life import vm_extend as vm_extend
    from provision.app.vm.life import vm_label as vm_label
    from provision.app.vm.life import vm_reset as vm_reset
    from provision.app.vm.life import vm_start as vm_start
    from provision.app.vm.life import vm_stop as vm_stop
    from provision.app.vm.offers import vm_offers as vm_offers
    from provision.app.vm.watch import vm_serial as vm_serial
    from provision.app.vm.watch import vm_wait as vm_wait

__all__ = ["Done", "Session", "Targets"]

_USE_CASES = {
    "checkup": ("doctor",),
    "demo": ("demo",),
    "dev.container": ("dev_devcontainer", "dev_down", "dev_exec", "dev_run", "dev_shell", "dev_up"),
    "image": ("image_build", "image_render"),
    "inventory": ("inventory_ansible", "inventory_list"),
    "mock": ("mock_down", "mock_status", "mock_up"),
    "mps.advice": ("mps_explain", "mps_plan"),
    "mps.benchmark": ("mps_bench",),
    "mps.checks": ("mps_doctor",),
    "mps.control": ("mps_disable", "mps_enable", "mps_status"),
    "mps.watch": ("mps_top",),
    "mps.wishes": ("mps_asked",),
    "vm.costs": ("vm_cost",),
    "vm.creation": ("vm_create",),
    "vm.existing": ("vm_delete", "vm_list", "vm_show"),
    "vm.garbage": ("vm_gc",),
    "vm.hosts": ("vm_copy", "vm_provision", "vm_ssh", "vm_ssh_config", "vm_user_data"),
    "vm.life": ("vm_extend", "vm_label", "vm_reset", "vm_start", "vm_stop"),
    "vm.offers": ("vm_offers",),
    "vm.watch": ("vm_serial", "vm_wait"),
}
_MODULES = {name: module for module, names in _USE_CASES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
