"""Containers of the docker stand-in: a folder that stands for `/`, real processes, Docker's own refusals."""

from __future__ import annotations

import os
import signal
import sys
import time

from . import container_processes
from .container_program import environment_of, find_program, in_rootfs, rootfs_of, working_folder
from .store import DockerError, Record, Store, complain, daemon_error, now, say

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any

_CDI = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
    "container process: error during container init: error running prestart hook #0: exit status 1, stdout: , stderr: Using requested mode "
    "'cdi'\ninvoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. Please use the "
    "NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead: unknown"
)


def state_of(store: Store, record: Record) -> Record:
    """The record's State as it is now: the processes decide."""
    state = record["State"]
    if state["Status"] == "running" and _namespace_ended(store, record):
        container_processes.end(
            record["Id"], state["Pid"], state["Ticks"], number=signal.SIGKILL, grace_s=5
        )
    if state["Status"] == "running" and not container_processes.alive(state["Pid"], state["Ticks"]):
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


def _namespace_ended(store: Store, record: Record) -> bool:
    """The first process of a PID namespace takes every other one along when it ends, those of other containers too."""
    kind, _, name = record["HostConfig"]["PidMode"].partition(":")
    if kind != "container":
        return False
    owner = store.container(name)
    return (
        owner is None
        or owner["State"]["StartedAt"] != record["State"].get("Joined")
        or not state_of(store, owner)["Running"]
    )


def _joined(store: Store, record: Record) -> str:
    """When the container whose namespaces it joins was started; empty for none. Raises what the daemon refuses."""
    started = ""
    for key, what in (("PidMode", "PID"), ("IpcMode", "IPC")):
        kind, _, name = record["HostConfig"][key].partition(":")
        if kind != "container":
            continue
        owner = store.container_or_fail(name)
        if not state_of(store, owner)["Running"]:
            daemon_error(f"cannot join {what} of a non running container: {owner['Id']}", 125)
        if key == "IpcMode" and owner["HostConfig"]["IpcMode"] != "shareable":
            daemon_error(
                f"can't join IPC of container {owner['Id']}: non-shareable IPC (hint: use IpcMode:shareable for the donor container)",
                125,
            )
        started = owner["State"]["StartedAt"] if key == "PidMode" else started
    return started


def start(store: Store, record: Record, *, attach: bool = False, interactive: bool = False) -> int:
    """Start the main process. Attached, wait for it and return its status, else return 0."""
    if state_of(store, record)["Status"] == "running":
        return 0
    _prepare_devices(store, record)
    if record["HostConfig"]["DeviceRequests"]:
        daemon_error(_CDI, 125)
    joined = _joined(store, record)
    for mount in record["Mounts"]:
        _bind(store, record, mount)
    program = [record["Path"], *record["Args"]]
    if not record["Path"]:
        daemon_error("no command specified", 125)
    environment = environment_of(store, record, [])
    path = find_program(store, record, program[0], environment)
    folder = store.folder("containers", record["Id"])
    if os.path.exists(f"{folder}/exit"):
        os.unlink(f"{folder}/exit")
    arguments = [program[0], *(in_rootfs(store, record, word) for word in program[1:])]
    apply_limits(record)
    pid, supervisor = _launch(
        path,
        arguments,
        environment,
        working_folder(store, record, None),
        folder,
        attach=attach,
        interactive=interactive,
    )
    record["State"] = {
        **record["State"],
        "Status": "running",
        "Running": True,
        "Pid": pid,
        "Ticks": container_processes.start_ticks(pid),
        "Supervisor": supervisor,
        "Joined": joined,
        "ExitCode": 0,
        "Error": "",
        "StartedAt": now(),
        "Stopped": False,
    }
    store.save("containers", record["Id"], record)
    if not attach:
        return 0
    try:
        os.waitpid(supervisor, 0)
    except KeyboardInterrupt:
        container_processes.end(
            record["Id"], pid, record["State"]["Ticks"], number=signal.SIGINT, grace_s=10
        )
    return int(state_of(store, record)["ExitCode"])


def _prepare_devices(store: Store, record: Record) -> None:
    folder = rootfs_of(store, record) + "/dev"
    for name in os.listdir(folder):
        if name.startswith("nvidia"):
            os.unlink(f"{folder}/{name}")
    wanted = list(record["HostConfig"]["Devices"])
    if record["HostConfig"]["Privileged"]:
        wanted += [
            {"PathOnHost": f"/dev/{name}", "PathInContainer": f"/dev/{name}"}
            for name in os.listdir(store.real("/dev"))
            if name.startswith("nvidia")
        ]
    for device in wanted:
        if not os.path.lexists(store.real(device["PathOnHost"])):
            text = f'error gathering device information while adding custom device "{device["PathOnHost"]}": no such file or directory'
            record["State"].update(
                Status="created" if not record["State"]["StartedAt"] else "exited",
                Error=text,
                ExitCode=128,
            )
            store.save("containers", record["Id"], record)
            daemon_error(text, 125)
        target = rootfs_of(store, record) + device["PathInContainer"]
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w"):
            pass


def _bind(store: Store, record: Record, mount: Record) -> None:
    """A mount is a link, but for the driver's folders: those are taken as they are now, mount options included.

    A container keeps the options its mounts had when it started, and the installer replaces the
    folders. A noexec folder mounted read-only is executable in the container, mounted read-write it
    is not (measured with runc 1.1.5).
    """
    import shutil
    import stat

    source = store.real(mount["Source"])
    if not os.path.exists(source):
        os.makedirs(source)  # -v makes missing folders
    target = rootfs_of(store, record) + mount["Destination"].rstrip("/")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(target):
        os.unlink(target)
    elif os.path.isdir(target):
        if mount["Type"] == "volume" and not os.listdir(source):
            shutil.copytree(
                target, source, symlinks=True, dirs_exist_ok=True
            )  # a new volume starts with the image's files
        shutil.rmtree(target)
    elif os.path.exists(target):
        os.unlink(target)
    if not mount["Source"].startswith("/var/lib/nvidia/"):
        os.symlink(source, target)
        return
    shutil.copytree(source, target, symlinks=True)
    if not mount["RW"]:
        for name in os.listdir(target):
            if stat.S_ISREG(os.lstat(f"{target}/{name}").st_mode) and target.endswith("bin"):
                os.chmod(f"{target}/{name}", 0o755)  # noqa: S103 - a program


def _launch(
    path: str,
    argv: list[str],
    environment: dict[str, str],
    cwd: str,
    folder: str,
    *,
    attach: bool,
    interactive: bool,
) -> tuple[int, int]:
    """Start the main process under a supervisor, which writes down its exit status. Returns both pids."""
    import subprocess

    read_end, write_end = os.pipe()
    sys.stdout.flush()
    supervisor = os.fork()
    if supervisor:
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            return int(pipe.readline() or 0), supervisor
    os.setsid()
    os.dup2(write_end, 3)
    os.closerange(4, 4096)  # the lock above all
    write_end = 3
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    child = subprocess.Popen(
        argv,
        executable=path,
        env=environment,
        cwd=cwd,
        stdin=None if interactive else null,
        stdout=None if attach else log,
        stderr=None if attach else log,
        start_new_session=True,
    )
    os.write(write_end, f"{child.pid}\n".encode())
    os.close(write_end)
    for target in (0, 1, 2):
        os.dup2(null, target)
    status = child.wait()
    with open(f"{folder}/exit.new", "w") as file:
        file.write(str(status if status >= 0 else 128 - status))
    os.replace(f"{folder}/exit.new", f"{folder}/exit")
    os._exit(0)


def stop(
    store: Store, record: Record, *, grace_s: float = 10.0, number: int = signal.SIGTERM
) -> None:
    """End the container's processes; a container that does not run is left alone."""
    state = state_of(store, record)
    if state["Status"] != "running":
        return
    main, ticks = state["Pid"], state["Ticks"]
    if (
        not record["HostConfig"]["Init"]
        and number == signal.SIGTERM
        and os.path.basename(record["Path"]) in ("sleep", "tail", "sh", "bash")
    ):
        number, grace_s = (
            signal.SIGKILL,
            0,
        )  # as process 1 these ignore SIGTERM: Docker waits, then kills; the wait is left out
    container_processes.end(record["Id"], main, ticks, number=number, grace_s=grace_s)
    state_of(store, record)
    record["State"]["Stopped"] = True
    store.save("containers", record["Id"], record)


def remove(store: Store, record: Record, *, force: bool, volumes: bool = False) -> None:
    """Remove the container; its anonymous volumes too when asked."""
    if state_of(store, record)["Status"] == "running":
        if not force:
            name = record["Name"]
            daemon_error(
                f'cannot remove container "{name}": container is running: stop the container before removing or force remove'
            )
        stop(store, record, grace_s=0, number=signal.SIGKILL)
    if volumes:
        for mount in record["Mounts"]:
            if mount["Type"] == "volume" and len(mount["Name"]) == 64:
                store.drop("volumes", mount["Name"])
    store.drop("containers", record["Id"])


def boot(store: Store) -> None:
    """The daemon starts: whatever ran is stopped; restart policies act, before any device node exists."""
    for record in store.all("containers"):
        was_running = record["State"]["Status"] == "running"
        if was_running:
            record["State"].update(
                Status="exited", Running=False, Pid=0, Ticks="", ExitCode=255, FinishedAt=now()
            )
            store.save("containers", record["Id"], record)
        policy = record["HostConfig"]["RestartPolicy"]["Name"]
        if policy == "always" or (
            policy in ("unless-stopped", "on-failure")
            and was_running
            and not record["State"].get("Stopped")
        ):
            try:
                start(store, record)
            except DockerError as error:
                complain(str(error))


def apply_limits(record: Record) -> None:
    """`--ulimit nofile=SOFT[:HARD]` for this process and what it starts. Raises runc's words where the machine forbids it."""
    import resource

    for word in record["HostConfig"]["Ulimits"]:
        name, _, values = word.partition("=")
        if name == "nofile":
            soft, _, hard = values.partition(":")
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard or soft)))
            except (ValueError, OSError):
                raise DockerError(
                    "OCI runtime create failed: error setting rlimit type 7: operation not permitted: unknown",
                    126,
                ) from None


def run_in(store: Store, record: Record, options: dict[str, Any], command: list[str]) -> int:
    """Docker exec: a real process in the container. With a terminal it takes this one's place."""
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
    cwd = working_folder(store, record, options["workdir"])
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


def show_logs(store: Store, record: Record, tail: str | None) -> None:
    """What the main process printed."""
    try:
        with open(store.folder("containers", record["Id"]) + "/log", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = []
    for line in (
        lines if tail in (None, "all") else lines[len(lines) - min(int(tail), len(lines)) :]
    ):
        say(line)
