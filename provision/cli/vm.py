"""VMs: create, provision, look at, stop and start, enter, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult

_NAMES = {
    "name": "the VM, instead of the one of the settings; several with commas, or with * and ?"
}
_PLACEMENT = ("name", "zones", "machine_type", "gpu", "ttl", "provisioning")


def _named(run: Run, name: str | None) -> str:
    return run.settings.name if name is None else name


@command(
    TaskSpec("vm.create", targets=True, settings=_PLACEMENT, omits=("limit",)),
    about={
        "count": "how many VMs, at most 500; two or more are named NAME-1, NAME-2 and so on",
        "parallel_zones": "ask so many zones at once, keep the first VM and delete the others; one after another unless told otherwise",
    },
)
def create(run: Run, *, count: str | None = None, parallel_zones: str | None = None) -> TaskResult:
    """Create the GPU VM, provision and verify it.

    Zones are asked in the order of the settings until one has the machine. Run again, it changes
    nothing. With --count, VMs are made side by side, each in the first zone that takes it; what
    could not be made is named beside what was.
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

    Driver, mounts, registry login, boot unit; what is as it should be is left alone. With --check:
    what would change.
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
    """List what could be had where, with price and quota.

    Prices are estimates with a date. That a zone offers a machine says nothing of its capacity at
    this moment.
    """
    from provision.commands.vm.offers import vm_offers

    return vm_offers(run.project, gpu=gpu, region=region)


@command(TaskSpec("vm.list", prints_result=True))
def list_(run: Run) -> TaskResult:
    """List the VMs made here: state, age, cost, time left."""
    from provision.commands.vm.list import vm_list

    return vm_list(run.project)


@command(TaskSpec("vm.show", prints_result=True, settings=("name",)))
def show(run: Run) -> TaskResult:
    """Show one VM."""
    from provision.commands.vm.show import vm_show

    return vm_show(run.project, name=run.settings.name)


@command(TaskSpec("vm.cost", prints_result=True))
def cost(run: Run) -> TaskResult:
    """What the VMs made here have cost, and will by the end of their time.

    An estimate from list prices: of the present or last run, and of the disk since it was made.
    """
    from provision.commands.vm.cost import vm_cost

    return vm_cost(run.project)


@command(TaskSpec("vm.stop"), about=_NAMES)
def stop(run: Run, *, name: str | None = None) -> TaskResult:
    """Stop VMs: only their disks go on billing.

    One that is stopped already stays as it is.
    """
    from provision.commands.vm.stop import vm_stop

    return vm_stop(run.project, _named(run, name))


@command(TaskSpec("vm.start"), about=_NAMES)
def start(run: Run, *, name: str | None = None) -> TaskResult:
    """Start VMs where they are; wait until the boot brought all back.

    The time to live counts anew. A VM is bound to its zone by its disk: without capacity there, it
    stays stopped.
    """
    from provision.commands.vm.start import vm_start

    return vm_start(run.project, _named(run, name))


@command(TaskSpec("vm.reset"), about=_NAMES)
def reset(run: Run, *, name: str | None = None) -> TaskResult:
    """Reset VMs, as their reset button would, and wait until they are back."""
    from provision.commands.vm.reset import vm_reset

    return vm_reset(run.project, _named(run, name))


@command(
    TaskSpec("vm.extend"),
    about={
        "duration": "how much longer, such as 2h or 90m",
        **_NAMES,
        "restart": "stop a running VM, change its limit, start it again",
    },
)
def extend(
    run: Run, duration: str, *, name: str | None = None, restart: bool = False
) -> TaskResult:
    """Give VMs more time before the cloud stops them, for one run.

    The run that is under way or, of a stopped VM, the next one; the start after it puts the usual
    limit back. Compute Engine documents that it changes the limit of a stopped VM only: a running
    one may be refused without --restart.
    """
    from provision.commands.vm.extend import vm_extend

    return vm_extend(run.project, duration, _named(run, name), restart=restart)


@command(
    TaskSpec("vm.label"),
    about={"labels": "KEY=VALUE to put, KEY- to take away, several with commas", **_NAMES},
)
def label(run: Run, labels: str, *, name: str | None = None) -> TaskResult:
    """Put labels on VMs, or take them away."""
    from provision.commands.vm.label import vm_label

    return vm_label(run.project, labels, _named(run, name))


@command(
    TaskSpec("vm.serial", prints_result=True, settings=("name",)),
    about={"follow": "go on until the VM stops, or Ctrl-C"},
)
def serial(run: Run, *, follow: bool = False) -> TaskResult:
    """Print what the VM wrote on its serial port."""
    from provision.commands.vm.serial import vm_serial

    return vm_serial(run.project, run.settings.name, follow=follow)


@command(
    TaskSpec("vm.wait", settings=("name",)),
    about={
        "until": "running, ssh or ready (the default): booted, and nothing differs from the recipe",
        "timeout": "15m unless told otherwise",
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

    return vm_delete(run.project, name=_named(run, name), yes=yes, confirm=run.confirm)


@command(
    TaskSpec("vm.gc"),
    about={
        "yes": "ask nothing",
        "check": "say what would be deleted, delete nothing",
        "every_key": "also what you made with another project's key: from a folder or a state that is gone, or on another machine",
    },
)
def gc(run: Run, *, yes: bool = False, check: bool = False, every_key: bool = False) -> TaskResult:
    """Delete what belongs to nobody, or is stopped for too long.

    VMs and disks that carry this toolkit's labels, and no journal of this machine says that a run
    finished making them; VMs that are stopped for longer than the idle_delete written on them; and
    the project's key in your login profile (OS Login) once no VM of the project is left. Asks
    first; without a terminal it needs --yes. What carries other labels, or none, is never touched.
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
    """A shell on the host, or the command after --.

    Returns the status of what ran there; 125 when it could not be run.
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
    """Print cloud-init user-data for a VM made elsewhere.

    With it in the VM's metadata, each boot of Container-Optimized OS brings back what provisioning
    set up.
    """
    from provision.commands.vm.user_data import vm_user_data

    return vm_user_data(run.project)


@command(
    TaskSpec("vm.copy", targets=True, dry_run=False),
    about={"src": "a file or folder here, or gs://BUCKET/PATH", "dst": "a folder on the host"},
)
def copy(run: Run, src: str, dst: str) -> TaskResult:
    """Copy code to the host, from here or from a bucket.

    What lies here travels over the connection; gs:// is read on the host itself, through toolbox.
    """
    from provision.commands.vm.copy import vm_copy

    return vm_copy(run.project, targets=run.targets, src=src, dst=dst)
