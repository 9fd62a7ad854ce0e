"""docker exec: a further process in a running container."""

from __future__ import annotations

import os
import sys

from .container_program import environment_of, find_program, in_rootfs, make_working_folder
from .container_start import apply_limits
from .container_state import state_of
from .store import DockerError, Record, Store, daemon_error

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any


def exec_in_container(
    store: Store, record: Record, options: dict[str, Any], command: list[str]
) -> int:
    """Run a process in a running container and return its status. Raises `DockerError`.

    With a terminal it replaces the current process.
    """
    import subprocess

    if state_of(store, record)["Status"] != "running":
        daemon_error(f"container {record['Id']} is not running")
    if options["tty"] and not sys.stdin.isatty():
        raise DockerError("the input device is not a TTY")
    environment = environment_of(store, record, options["env"], options["user"])
    if options["tty"]:
        environment.setdefault("TERM", os.environ.get("TERM", "xterm"))
    path = find_program(store, record, command[0], environment, doing="exec")
    argv = [command[0], *(in_rootfs(store, record, word) for word in command[1:])]
    cwd = make_working_folder(store, record, options["workdir"])
    apply_limits(record)
    if options["tty"]:
        os.chdir(cwd)
        os.execve(path, argv, environment)  # noqa: S606 - its whole purpose
    null = os.open(os.devnull, os.O_RDWR)
    detach = options["detach"]
    child = subprocess.Popen(
        argv,
        executable=path,
        env=environment,
        cwd=cwd,
        stdin=None if options["interactive"] else null,
        stdout=null if detach else None,
        stderr=null if detach else None,
        start_new_session=True,  # a signal to the client does not reach it
    )
    if detach:
        return 0
    os.dup2(null, 0)
    status = child.wait()
    return status if status >= 0 else 128 - status
