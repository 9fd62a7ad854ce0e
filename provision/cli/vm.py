"""VMs: create, provision, list, stop and start, open a shell, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult

_NAMES = {"name": "the VM, instead of that of the settings; several with commas, or with * and ?"}
_PLACEMENT = ("name", "zones", "machine_type", "gpu", "ttl", "provisioning")


def _vm_name(run: Run, name: str | None) -> str:
    return run.settings.name if name is None else name


@command(
    TaskSpec("vm.create", targets=True, settings=_PLACEMENT, omits=("limit",)),
    about={
        "count": "the number of VMs, at most 500; two or more are named NAME-1, NAME-2 and so on",
        "parallel_zones": (
            "the number of zones to ask at once: the first VM is kept, others are deleted; "
            "1 by default"
        ),
    },
)
def create(run: Run, *, count: str | None = None, parallel_zones: str | None = None) -> TaskResult:
    """Create the GPU VM, provision and verify it.

    Zones are asked in the order of the settings until one has the machine. A second run changes
    nothing. With --count, VMs are created in parallel, each in the first zone with capacity; the
    result lists those that failed, too.
    """
    from provision.cli.flag_values import parse_count
    from provision.commands.vm.create.create import vm_create

    return vm_create(
        run.project,
        name=run.settings.name,
        targets=run.targets,
        count=parse_count("--count", count, least=1) or 1,
        parallel_zones=parse_count("--parallel-zones", parallel_zones, least=1) or 1,
    )


@command(TaskSpec("vm.provision", targets=True))
def provision(run: Run) -> TaskResult:
    """Converge hosts to the recipes, yours included.

    Driver, mounts, registry login, boot unit; what matches the recipes stays unchanged. With
    --check, it reports what would change.
    """
    from provision.commands.vm.provision import vm_provision

    return vm_provision(run.project, targets=run.targets)


@command(
    TaskSpec("vm.offers", prints_result=True),
    about={
        "gpu": "every machine that carries this GPU, such as l4; without it one for each type",
        "region": "only zones whose name begins with this, such as europe-west4",
    },
)
def offers(run: Run, *, gpu: str | None = None, region: str | None = None) -> TaskResult:
    """List which machines the zones offer, with price and quota.

    Prices are estimates with a date. A zone that offers a machine may lack capacity at this
    moment.
    """
    from provision.commands.vm.offers.offers import vm_offers

    return vm_offers(run.project, gpu=gpu, region=region)


@command(TaskSpec("vm.list", prints_result=True))
def list_(run: Run) -> TaskResult:
    """List the VMs created here: state, age, cost, time left."""
    from provision.commands.vm.list import vm_list

    return vm_list(run.project)


@command(TaskSpec("vm.show", prints_result=True, settings=("name",)))
def show(run: Run) -> TaskResult:
    """Show one VM."""
    from provision.commands.vm.show import vm_show

    return vm_show(run.project, name=run.settings.name)


@command(TaskSpec("vm.cost", prints_result=True))
def cost(run: Run) -> TaskResult:
    """Show what the VMs created here have cost, and will have cost at the end of their time.

    An estimate from list prices: of the present or last run, and of the disk since its creation.
    """
    from provision.commands.vm.cost import vm_cost

    return vm_cost(run.project)


@command(TaskSpec("vm.stop"), about=_NAMES)
def stop(run: Run, *, name: str | None = None) -> TaskResult:
    """Stop VMs: only their disks are billed from then on.

    A stopped VM stays as it is.
    """
    from provision.commands.vm.stop import vm_stop

    return vm_stop(run.project, _vm_name(run, name))


@command(TaskSpec("vm.start"), about=_NAMES)
def start(run: Run, *, name: str | None = None) -> TaskResult:
    """Start VMs in their zones; wait until they have booted and are provisioned.

    The time to live starts again. The disk binds a VM to its zone: without capacity there, the VM
    stays stopped.
    """
    from provision.commands.vm.start import vm_start

    return vm_start(run.project, _vm_name(run, name))


@command(TaskSpec("vm.reset"), about=_NAMES)
def reset(run: Run, *, name: str | None = None) -> TaskResult:
    """Reset VMs like a reset button, and wait until they are ready again."""
    from provision.commands.vm.reset import vm_reset

    return vm_reset(run.project, _vm_name(run, name))


@command(
    TaskSpec("vm.extend"),
    about={
        "duration": "the additional time, such as 2h or 90m",
        **_NAMES,
        "restart": "stop a running VM, change its limit, start it again",
    },
)
def extend(
    run: Run, duration: str, *, name: str | None = None, restart: bool = False
) -> TaskResult:
    """Give VMs more time before the cloud stops them, for one run.

    That is the current run or, for a stopped VM, the next one; the start after it restores the
    usual limit. Compute Engine documents that the limit of a stopped VM alone can change: without
    --restart, the change of a running VM may be refused.
    """
    from provision.commands.vm.extend import vm_extend

    return vm_extend(run.project, duration, _vm_name(run, name), restart=restart)


@command(
    TaskSpec("vm.label"),
    about={"labels": "KEY=VALUE to set, KEY- to remove, several with commas", **_NAMES},
)
def label(run: Run, labels: str, *, name: str | None = None) -> TaskResult:
    """Set or remove labels of VMs."""
    from provision.commands.vm.label import vm_label

    return vm_label(run.project, labels, _vm_name(run, name))


@command(
    TaskSpec("vm.serial", prints_result=True, settings=("name",)),
    about={"follow": "continue until the VM stops, or Ctrl-C"},
)
def serial(run: Run, *, follow: bool = False) -> TaskResult:
    """Print what the VM wrote on its serial port."""
    from provision.commands.vm.serial import vm_serial

    return vm_serial(run.project, run.settings.name, follow=follow)


@command(
    TaskSpec("vm.wait", settings=("name",)),
    about={
        "until": "running, ssh or ready (the default): booted, and nothing differs from the recipe",
        "timeout": "15m by default",
    },
)
def wait(run: Run, *, until: str = "ready", timeout: str = "15m") -> TaskResult:
    """Wait until the VM is ready, or answers on SSH."""
    from provision.commands.vm.wait import vm_wait

    return vm_wait(run.project, run.settings.name, until=until, timeout=timeout)


@command(TaskSpec("vm.delete"), about={**_NAMES, "yes": "ask nothing"})
def delete(run: Run, *, name: str | None = None, yes: bool = False) -> TaskResult:
    """Delete VMs and their disks.

    Asks first; without a terminal it needs --yes.
    """
    from provision.commands.vm.delete import vm_delete

    return vm_delete(run.project, name=_vm_name(run, name), yes=yes, confirm=run.confirm)


@command(
    TaskSpec("vm.gc"),
    about={
        "yes": "ask nothing",
        "check": "report what would be deleted, delete nothing",
        "every_key": (
            "also what you created with another project's key: from a lost folder or state, "
            "or on another machine"
        ),
    },
)
def gc(run: Run, *, yes: bool = False, check: bool = False, every_key: bool = False) -> TaskResult:
    """Delete orphans, and VMs that are stopped for too long.

    Orphans are VMs and disks with this toolkit's labels that no journal of this machine records as
    completed. A VM is stopped for too long after the time of its idle_delete label. The project's
    key in your login profile (OS Login) is removed once no VM of the project is left. Asks first;
    without a terminal it needs --yes. Resources without the labels are never touched.
    """
    from provision.commands.vm.gc import vm_gc

    return vm_gc(run.project, yes=yes, check=check, every_key=every_key, confirm=run.confirm)


@command(
    TaskSpec(
        "vm.ssh",
        targets=True,
        words="a command",
        runs_program=True,
        dry_run=False,
        single_host=True,
    )
)
def ssh(run: Run) -> TaskResult:
    """Open a shell on the host, or run the command after --.

    Returns the status of the shell or command; 125 when it could not be run.
    """
    from provision.commands.vm.ssh import vm_ssh

    return vm_ssh(run.project, targets=run.targets, words=run.words)


@command(TaskSpec("vm.ssh-config", prints_result=True))
def ssh_config(run: Run) -> TaskResult:
    """Print an ssh_config fragment for ssh, rsync, editors."""
    from provision.commands.vm.ssh_config import vm_ssh_config

    return vm_ssh_config(run.project)


@command(TaskSpec("vm.user-data", prints_result=True))
def user_data(run: Run) -> TaskResult:
    """Print cloud-init user-data for a VM created elsewhere.

    With it in the VM's metadata, each boot of Container-Optimized OS restores what provisioning
    set up.
    """
    from provision.commands.vm.user_data import vm_user_data

    return vm_user_data(run.project)


@command(
    TaskSpec("vm.copy", targets=True, dry_run=False),
    about={"src": "a local file or folder, or gs://BUCKET/PATH", "dst": "a folder on the host"},
)
def copy(run: Run, src: str, dst: str) -> TaskResult:
    """Copy code to the host, from here or from a bucket.

    Local files travel over the connection; the host itself reads gs://, through toolbox.
    """
    from provision.commands.vm.copy import vm_copy

    return vm_copy(run.project, targets=run.targets, src=src, dst=dst)
