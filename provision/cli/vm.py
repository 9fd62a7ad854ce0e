"""VMs: create, provision, look at, enter, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command

if TYPE_CHECKING:
    from provision.app import Done
    from provision.cli.execution import Run

_PLACEMENT = ("name", "zones", "machine_type", "gpu", "ttl")


@command("vm.create", targets=True, settings=_PLACEMENT)
def create(run: Run) -> Done:
    """Create the GPU VM, provision it and verify it; run again: no change."""
    from provision import app

    return app.vm_create(run.session, name=run.settings.name, targets=run.targets)


@command("vm.provision", targets=True)
def provision(run: Run) -> Done:
    """Converge hosts to the recipes: driver, mounts, registry login, boot unit, your own."""
    from provision import app

    return app.vm_provision(run.session, targets=run.targets)


@command("vm.list")
def list_(run: Run) -> Done:
    """List the VMs that this toolkit made: zone, age, cost, time left."""
    from provision import app

    return app.vm_list(run.session)


@command("vm.show", settings=("name",))
def show(run: Run) -> Done:
    """Show one VM."""
    from provision import app

    return app.vm_show(run.session, name=run.settings.name)


@command("vm.delete", settings=("name",), about={"yes": "ask nothing"})
def delete(run: Run, *, yes: bool = False) -> Done:
    """Delete the VM and its disk."""
    from provision import app

    return app.vm_delete(run.session, name=run.settings.name, yes=yes, confirm=run.confirm)


@command("vm.ssh", targets=True, words="a command", program=True)
def ssh(run: Run) -> Done:
    """A shell on the host, or the command given after --."""
    from provision import app

    return app.vm_ssh(run.session, targets=run.targets, words=run.words)


@command("vm.ssh-config")
def ssh_config(run: Run) -> Done:
    """Print an ssh_config fragment, so that `ssh NAME`, rsync and editors reach the hosts."""
    from provision import app

    return app.vm_ssh_config(run.session)


@command("vm.copy", targets=True, about={"src": "a file or folder here, or gs://BUCKET/PATH", "dst": "a folder on the host"})
def copy(run: Run, src: str, dst: str) -> Done:
    """Copy code to the host, from here or from a bucket (through toolbox)."""
    from provision import app

    return app.vm_copy(run.session, targets=run.targets, src=src, dst=dst)
