"""VMs: create, provision, look at, enter, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import Shape

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run

_PLACEMENT = ("name", "zones", "machine_type", "gpu", "ttl")


@command(Shape("vm.create", targets=True, settings=_PLACEMENT))
def create(run: Run) -> Done:
    """Create the GPU VM, provision and verify it.

    Zones are asked in the order of the settings until one has the machine. Run again, it changes nothing.
    """
    from provision import app

    return app.vm_create(run.session, name=run.settings.name, targets=run.targets)


@command(Shape("vm.provision", targets=True))
def provision(run: Run) -> Done:
    """Converge hosts to the recipes, yours included.

    Driver, mounts, registry login, boot unit; what is as it should be is left alone. With --check: what would change.
    """
    from provision import app

    return app.vm_provision(run.session, targets=run.targets)


@command(Shape("vm.list", result=True))
def list_(run: Run) -> Done:
    """List the VMs made here: zone, age, time left."""
    from provision import app

    return app.vm_list(run.session)


@command(Shape("vm.show", result=True, settings=("name",)))
def show(run: Run) -> Done:
    """Show one VM."""
    from provision import app

    return app.vm_show(run.session, name=run.settings.name)


@command(Shape("vm.delete", settings=("name",)), about={"yes": "ask nothing"})
def delete(run: Run, *, yes: bool = False) -> Done:
    """Delete the VM and its disk.

    Asks first; without a terminal it needs --yes.
    """
    from provision import app

    return app.vm_delete(run.session, name=run.settings.name, yes=yes, confirm=run.confirm)


@command(Shape("vm.ssh", targets=True, words="a command", program=True, checks=False))
def ssh(run: Run) -> Done:
    """A shell on the host, or the command after --.

    Returns the status of what ran there; 125 when it could not be run.
    """
    from provision import app

    return app.vm_ssh(run.session, targets=run.targets, words=run.words)


@command(Shape("vm.ssh-config", result=True))
def ssh_config(run: Run) -> Done:
    """Print an ssh_config fragment for ssh, rsync, editors."""
    from provision import app

    return app.vm_ssh_config(run.session)


@command(
    Shape("vm.copy", targets=True, checks=False), about={"src": "a file or folder here, or gs://BUCKET/PATH", "dst": "a folder on the host"}
)
def copy(run: Run, src: str, dst: str) -> Done:
    """Copy code to the host, from here or from a bucket.

    What lies here travels over the connection; gs:// is read on the host itself, through toolbox.
    """
    from provision import app

    return app.vm_copy(run.session, targets=run.targets, src=src, dst=dst)
