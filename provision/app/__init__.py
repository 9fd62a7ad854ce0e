"""The use cases: each composes settings, cloud, hosts, recipes and engine, and returns a `Done`.

They are looked up when first called, so that a task pays only for what it uses (google alone takes a second to import).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from provision.app.session import Done, Session, Targets

if TYPE_CHECKING:
    from provision.app.benchmark import mps_asked as mps_asked
    from provision.app.benchmark import mps_bench as mps_bench
    from provision.app.checkup import doctor as doctor
    from provision.app.demo import demo as demo
    from provision.app.dev import dev_devcontainer as dev_devcontainer
    from provision.app.dev import dev_down as dev_down
    from provision.app.dev import dev_exec as dev_exec
    from provision.app.dev import dev_run as dev_run
    from provision.app.dev import dev_shell as dev_shell
    from provision.app.dev import dev_up as dev_up
    from provision.app.image import image_build as image_build
    from provision.app.image import image_render as image_render
    from provision.app.inventory import inventory_ansible as inventory_ansible
    from provision.app.inventory import inventory_list as inventory_list
    from provision.app.mock import mock_down as mock_down
    from provision.app.mock import mock_status as mock_status
    from provision.app.mock import mock_up as mock_up
    from provision.app.mps import mps_disable as mps_disable
    from provision.app.mps import mps_enable as mps_enable
    from provision.app.mps import mps_status as mps_status
    from provision.app.mps_advice import mps_explain as mps_explain
    from provision.app.mps_advice import mps_plan as mps_plan
    from provision.app.mps_checks import mps_doctor as mps_doctor
    from provision.app.mps_watch import mps_top as mps_top
    from provision.app.offers import vm_offers as vm_offers
    from provision.app.vm import vm_delete as vm_delete
    from provision.app.vm import vm_list as vm_list
    from provision.app.vm import vm_show as vm_show
    from provision.app.vm_costs import vm_cost as vm_cost
    from provision.app.vm_creation import vm_create as vm_create
    from provision.app.vm_garbage import vm_gc as vm_gc
    from provision.app.vm_hosts import vm_copy as vm_copy
    from provision.app.vm_hosts import vm_provision as vm_provision
    from provision.app.vm_hosts import vm_ssh as vm_ssh
    from provision.app.vm_hosts import vm_ssh_config as vm_ssh_config
    from provision.app.vm_hosts import vm_user_data as vm_user_data
    from provision.app.vm_life import vm_extend as vm_extend
    from provision.app.vm_life import vm_label as vm_label
    from provision.app.vm_life import vm_reset as vm_reset
    from provision.app.vm_life import vm_start as vm_start
    from provision.app.vm_life import vm_stop as vm_stop
    from provision.app.vm_watch import vm_serial as vm_serial
    from provision.app.vm_watch import vm_wait as vm_wait

__all__ = ["Done", "Session", "Targets"]

_NOUNS = frozenset({"vm", "inventory", "image", "dev", "mps", "mock", "demo", "doctor"})
_ELSEWHERE = {
    "doctor": "checkup",
    "mps_asked": "benchmark",
    "mps_bench": "benchmark",
    "mps_doctor": "mps_checks",
    "mps_explain": "mps_advice",
    "mps_plan": "mps_advice",
    "mps_top": "mps_watch",
    "vm_copy": "vm_hosts",
    "vm_cost": "vm_costs",
    "vm_create": "vm_creation",
    "vm_extend": "vm_life",
    "vm_gc": "vm_garbage",
    "vm_label": "vm_life",
    "vm_offers": "offers",
    "vm_provision": "vm_hosts",
    "vm_reset": "vm_life",
    "vm_serial": "vm_watch",
    "vm_ssh": "vm_hosts",
    "vm_ssh_config": "vm_hosts",
    "vm_start": "vm_life",
    "vm_stop": "vm_life",
    "vm_user_data": "vm_hosts",
    "vm_wait": "vm_watch",
}
"""The module of a use case that is not in the one named after its noun."""


def __getattr__(name: str) -> Any:
    noun = name.partition("_")[0]
    if noun not in _NOUNS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE.get(name, noun)}"), name)
