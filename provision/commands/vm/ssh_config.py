"""`vm.ssh-config`: an ssh_config fragment for the project's hosts."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict
from pathlib import Path

from provision import templating
from provision.commands.shared.result import TaskResult
from provision.project import host_key_pinning, inventory
from provision.project.project import Project


def vm_ssh_config(project: Project) -> TaskResult:
    """Return an ssh_config fragment for every host that is reached over SSH.

    It repeats what the user's ssh_config sets for an address that is one of its aliases: ssh looks
    up the name alone.
    """
    from provision.hosts.ssh.alias import resolve_alias

    hosts = inventory.prepare_access(
        project, [target for target in inventory.recorded_hosts(project) if not target.is_local]
    )
    project.home.mkdir(parents=True, exist_ok=True)
    host_key_pinning.pin_keys_of_settings(project, hosts)
    aliases = {
        target.name: asdict(resolve_alias(target, project.ssh_config))
        for target in hosts
        if not target.key_alias
    }
    text = templating.ssh_config(
        hosts,
        aliases=aliases,
        known_hosts=str(project.known_hosts.own),
        control_dirs=_control_folders(project),
        project_dir=project.project_dir,
    )
    document = {"hosts": [target.name for target in hosts], "ssh_config": text}
    return TaskResult(document, text=text.rstrip("\n"))


def _control_folders(project: Project) -> list[str]:
    """Folders for the sockets of shared connections, best first.

    The project's own folder is not one of them: below `~/.local/state` its path is too long for a
    socket. The names of the sockets differ by host, port and user.
    """
    project.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    folders = [project.state_dir, Path(project.environ.get("HOME") or "~").expanduser() / ".ssh"]
    return [str(folder) for folder in folders if folder.is_dir() and _is_private(folder.stat())]


def _is_private(folder: os.stat_result) -> bool:
    """Whether only this user can put a socket there: ssh sends our commands to it."""
    return folder.st_uid == os.geteuid() and not folder.st_mode & stat.S_IWOTH
