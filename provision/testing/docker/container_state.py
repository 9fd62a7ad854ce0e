"""Containers after their start: state, stop, removal, logs."""

from __future__ import annotations

import os
import signal
import time

from . import container_processes
from .store import Record, Store, daemon_error, now, print_line


def state_of(store: Store, record: Record) -> Record:
    """The current State of a container, derived from its processes and saved if it changed."""
    state = record["State"]
    if state["Status"] == "running" and _joined_namespace_ended(store, record):
        container_processes.end_processes(
            record["Id"], state["Pid"], state["Ticks"], number=signal.SIGKILL, grace_s=5
        )
    if state["Status"] == "running" and not container_processes.is_alive(
        state["Pid"], state["Ticks"]
    ):
        state.update(
            Status="exited",
            Running=False,
            Pid=0,
            ExitCode=_exit_code(store, record),
            FinishedAt=now(),
        )
        store.save("containers", record["Id"], record)
    return dict(state)


def _exit_code(store: Store, record: Record) -> int:
    deadline = time.monotonic() + 1
    path = store.folder("containers", record["Id"]) + "/exit"
    while time.monotonic() < deadline:
        try:
            with open(path) as file:
                return int(file.read())
        except (FileNotFoundError, ValueError):
            if container_processes.start_ticks(record["State"].get("Supervisor", 0)) == "":
                break
            time.sleep(0.01)
    return 255


def _joined_namespace_ended(store: Store, record: Record) -> bool:
    """True when the PID namespace that the container joined has ended, which ends its processes."""
    kind, _, name = record["HostConfig"]["PidMode"].partition(":")
    if kind != "container":
        return False
    owner = store.container(name)
    return (
        owner is None
        or owner["State"]["StartedAt"] != record["State"].get("Joined")
        or not state_of(store, owner)["Running"]
    )


def stop_container(
    store: Store, record: Record, *, grace_s: float = 10.0, number: int = signal.SIGTERM
) -> None:
    """End the container's processes; do nothing when it does not run."""
    state = state_of(store, record)
    if state["Status"] != "running":
        return
    main, ticks = state["Pid"], state["Ticks"]
    if (
        not record["HostConfig"]["Init"]
        and number == signal.SIGTERM
        and os.path.basename(record["Path"]) in ("sleep", "tail", "sh", "bash")
    ):
        # as process 1 these ignore SIGTERM: Docker waits and kills them; here without the wait
        number, grace_s = signal.SIGKILL, 0
    container_processes.end_processes(record["Id"], main, ticks, number=number, grace_s=grace_s)
    state_of(store, record)
    record["State"]["Stopped"] = True
    store.save("containers", record["Id"], record)


def remove_container(store: Store, record: Record, *, force: bool, volumes: bool = False) -> None:
    """Remove the container; with `volumes` its anonymous volumes too. Raises `DockerError`."""
    if state_of(store, record)["Status"] == "running":
        if not force:
            name = record["Name"]
            daemon_error(
                f'cannot remove container "{name}": container is running: '
                "stop the container before removing or force remove"
            )
        stop_container(store, record, grace_s=0, number=signal.SIGKILL)
    if volumes:
        for mount in record["Mounts"]:
            if mount["Type"] == "volume" and len(mount["Name"]) == 64:
                store.drop("volumes", mount["Name"])
    store.drop("containers", record["Id"])


def show_logs(store: Store, record: Record, tail: str | None) -> None:
    """Print the output of the main process, or its last `tail` lines."""
    try:
        with open(store.folder("containers", record["Id"]) + "/log", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = []
    for line in (
        lines if tail in (None, "all") else lines[len(lines) - min(int(tail), len(lines)) :]
    ):
        print_line(line)
