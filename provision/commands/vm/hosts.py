"""Any host, a VM or one of the settings: provisioned, entered, copied to."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from provision import templating
from provision.commands.shared import convergence, remote_exec
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core import fleet
from provision.core.errors import CommandFailed, UsageError
from provision.core.fleet import Cancel
from provision.core.model import (
    Emit,
    Host,
    HostConnected,
    HostReport,
    HostStarted,
    Outcome,
    ResourceFinished,
    Status,
    Transport,
)
from provision.core.shell import RemotePath, Script, command, script
from provision.hosts.ssh import terminal
from provision.project import host_keys, inventory, vm_address
from provision.project.project import Project
from provision.sync.project_tar import owned_by_root


def vm_provision(project: Project, targets: Targets) -> TaskResult:
    """Converge hosts to the recipe of the GPU host and the user's extra ones."""
    return convergence.run(
        project, targets, lambda target: convergence.cos_recipe(project, target), "vm.provision"
    )


def vm_ssh(project: Project, targets: Targets, words: Sequence[str] = ()) -> TaskResult:
    """A shell on the host, or one command; returns its status."""
    target = convergence.host(project, targets)
    return remote_exec.finished(
        enter(project, target, command(*words) if words else None, become=False)
    )


def enter(project: Project, target: Host, body: Script | None, *, become: bool) -> int:
    """An interactive session: a login shell, or `body` on the host's terminal, as root with `become`. The status it ended with."""

    def once(where: Host) -> int:
        return terminal.run_interactive(
            where,
            body,
            known_hosts=project.known_hosts,
            environ=project.environ,
            become=become,
        )

    return vm_address.retry_at_current_address(
        project,
        target,
        lambda where: host_keys.retry_with_published_keys(project, None, where, once),
    )


def vm_ssh_config(project: Project) -> TaskResult:
    """An ssh_config fragment for every host that is reached over SSH.

    What the user's ssh_config says of an address that is one of its aliases is repeated there: ssh
    looks up the name alone.
    """
    from provision.hosts.ssh.alias import resolve_alias

    hosts = inventory.prepare_access(
        project, [target for target in inventory.recorded_hosts(project) if not target.is_local]
    )
    project.home.mkdir(parents=True, exist_ok=True)
    host_keys.pin_keys_of_settings(project, hosts)
    config = project.ssh_config
    aliases = {
        target.name: asdict(resolve_alias(target, config))
        for target in hosts
        if not target.key_alias
    }
    text = templating.ssh_config(
        hosts,
        aliases=aliases,
        known_hosts=str(project.home / "known_hosts"),
        control_dirs=_socket_folders(project),
        project_dir=project.project_dir,
    )
    return TaskResult(
        {"hosts": [target.name for target in hosts], "ssh_config": text}, text=text.rstrip("\n")
    )


def _socket_folders(project: Project) -> list[str]:
    """Where ssh may put the sockets of shared connections, best first: folders of the user's own that stay.

    A project's own folder is too deep for one already below `~/.local/state`. The sockets' names
    differ by host, port and user.
    """
    project.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    folders = [project.state_dir, Path(project.environ.get("HOME") or "~").expanduser() / ".ssh"]
    return [str(folder) for folder in folders if folder.is_dir() and _is_our_own(folder.stat())]


def _is_our_own(folder: os.stat_result) -> bool:
    """Whoever may put a socket there would be given our commands."""
    return folder.st_uid == os.geteuid() and not folder.st_mode & stat.S_IWOTH


def vm_user_data(project: Project) -> TaskResult:
    """cloud-init user-data for a Container-Optimized OS machine that was made elsewhere: what calls the boot script after each boot."""
    from provision.commands.vm.shared.spec import user_data

    text = user_data(project, powers_off=False)
    return TaskResult({"user_data": text}, text=text.rstrip("\n"))


_UNPACK = """
mkdir -p "$dir"
tar -xzf - -C "$dir"
"""

# COS brings toolbox, which holds gsutil and sees the host's root below /media/root; elsewhere the
# CLI's own image does it.
_FROM_BUCKET = """
mkdir -p "$dir"
if command -v toolbox >/dev/null 2>&1; then
    toolbox /google-cloud-sdk/bin/gsutil -m cp -r "$bucket" "/media/root$plain/"
else
    docker run --rm --volume "$dir:$plain" --env HOME=/tmp "$image" gsutil -m cp -r "$bucket" "$plain/"
fi
"""
GSUTIL_IMAGE = "gcr.io/google.com/cloudsdktool/google-cloud-cli:stable"


def vm_copy(project: Project, targets: Targets, src: str, dst: str) -> TaskResult:
    """Copy a file or folder into the folder `dst` of the hosts: from here as one tar stream, from `gs://` on the host itself."""
    if not PurePosixPath(dst).is_absolute():
        raise UsageError(
            "DST must be an absolute folder of the host",
            where=dst,
            why="it does not begin with /",
            fix=f"{project.program_argv0} vm.copy {src} /home/{dst}",
        )
    chosen = convergence.hosts(project, targets)
    copy = _copy_of(src, dst)

    def work(target: Host, emit: Emit, cancel: Cancel) -> HostReport:
        started = time.monotonic()
        emit(HostStarted(target.name))
        transport = convergence.connect(
            project, target, on_closer=lambda close: cancel.register(target.name, close)
        )
        cancel.register(target.name, transport.close)
        try:
            emit(HostConnected(target.name, time.monotonic() - started))
            outcome = _copied(transport, copy, src, dst)
        finally:
            transport.close()
        emit(ResourceFinished(target.name, outcome))
        return HostReport(
            target.name, (outcome,), round_trips=1, seconds=time.monotonic() - started
        )

    finished = fleet.run(chosen, work, project.emit, title="vm.copy", pace=targets.pace)
    copied = [
        {"host": report.host, "src": src, "dst": dst}
        for report in finished.reports
        if not report.failed
    ]
    return convergence.done(finished, check=False, copied=copied)


def _copy_of(src: str, dst: str) -> tuple[Script, Sequence[bytes] | None]:
    """The script that copies on the host, and what it reads. What lies here is packed once for all hosts."""
    if src.startswith("gs://"):
        return script(
            _FROM_BUCKET, bucket=src, dir=RemotePath(dst), plain=dst, image=GSUTIL_IMAGE
        ), None
    return script(_UNPACK, dir=RemotePath(dst)), [pack(Path(src))]


def _copied(
    transport: Transport, copy: tuple[Script, Sequence[bytes] | None], src: str, dst: str
) -> Outcome:
    """The end of one host's copy; a command that failed there is its error, a lost connection is raised."""
    body, chunks = copy
    started = time.monotonic()
    try:
        remote_exec.checked(transport, body, f"copying {src}", chunks=chunks)
    except CommandFailed as error:
        return Outcome("copy", Status.FAILED, seconds=time.monotonic() - started, error=error)
    return Outcome(
        "copy", Status.CHANGED, seconds=time.monotonic() - started, note=f"{src} to {dst}"
    )


def pack(source: Path) -> bytes:
    """A gzipped tar of a file or of what a folder holds, under its own name, owned by root. Raises `UsageError` when there is none."""
    if not source.exists():
        raise UsageError(
            "there is nothing to copy",
            where=str(source),
            why="no such file or folder",
            fix=f"ls -l {source.parent}",
        )
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.add(source, arcname=source.resolve().name, filter=owned_by_root)
    return stream.getvalue()
