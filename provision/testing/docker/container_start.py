"""docker start: namespaces, devices, mounts, the main process, restart policies."""

from __future__ import annotations

import os
import signal
import sys

from . import container_processes
from .container_program import (
    environment_of,
    find_program,
    in_rootfs,
    make_working_folder,
    rootfs_of,
)
from .container_state import state_of
from .store import DockerError, Record, Store, daemon_error, now, print_error

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import NoReturn

_GPUS_FLAG_FAILED = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
    "error running prestart hook #0: exit status 1, stdout: , stderr: Using requested mode 'cdi'\n"
    "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) "
    "is not supported. Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia "
    "flag) instead: unknown"
)


def start(store: Store, record: Record, *, attach: bool = False, interactive: bool = False) -> int:
    """Start the main process; attached, wait for it and return its status, else return 0.

    Raises `DockerError` in the daemon's words.
    """
    if state_of(store, record)["Status"] == "running":
        return 0
    _prepare_devices(store, record)
    if record["HostConfig"]["DeviceRequests"]:
        daemon_error(_GPUS_FLAG_FAILED, 125)
    joined = _joined_since(store, record)
    for mount in record["Mounts"]:
        _bind(store, record, mount)
    pid, supervisor = _start_main_process(store, record, attach=attach, interactive=interactive)
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
        container_processes.end_processes(
            record["Id"], pid, record["State"]["Ticks"], number=signal.SIGINT, grace_s=10
        )
    return int(state_of(store, record)["ExitCode"])


def _joined_since(store: Store, record: Record) -> str:
    """The start time of the container whose PID namespace it joins, or empty."""
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
                f"can't join IPC of container {owner['Id']}: non-shareable IPC "
                "(hint: use IpcMode:shareable for the donor container)",
                125,
            )
        started = owner["State"]["StartedAt"] if key == "PidMode" else started
    return started


def _start_main_process(
    store: Store, record: Record, *, attach: bool, interactive: bool
) -> tuple[int, int]:
    """(PID of the main process, PID of its supervisor)."""
    if not record["Path"]:
        daemon_error("no command specified", 125)
    environment = environment_of(store, record, [])
    path = find_program(store, record, record["Path"], environment)
    folder = store.folder("containers", record["Id"])
    if os.path.exists(f"{folder}/exit"):
        os.unlink(f"{folder}/exit")
    apply_limits(record)
    argv = [record["Path"], *(in_rootfs(store, record, word) for word in record["Args"])]
    cwd = make_working_folder(store, record, None)
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    supervisor = os.fork()
    if not supervisor:
        os.setsid()
        os.dup2(write_end, 3)
        os.closerange(4, 4096)  # the store's lock among them
        _supervise(path, argv, environment, cwd, folder, attach=attach, interactive=interactive)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        return int(pipe.readline() or 0), supervisor


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
            text = (
                "error gathering device information while adding custom device "
                f'"{device["PathOnHost"]}": no such file or directory'
            )
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
    """Mount a folder as a symbolic link; copy the driver's folders in their current state.

    A container keeps the mount options that its mounts had at its start, and the installer replaces
    the driver's folders. A noexec folder that is mounted read-only is executable in the container;
    mounted read-write it is not (measured with runc 1.1.5).
    """
    import shutil
    import stat

    source = store.real(mount["Source"])
    if not os.path.exists(source):
        os.makedirs(source)  # -v creates missing folders
    target = rootfs_of(store, record) + mount["Destination"].rstrip("/")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(target):
        os.unlink(target)
    elif os.path.isdir(target):
        if mount["Type"] == "volume" and not os.listdir(source):
            # a new volume starts with the image's files
            shutil.copytree(target, source, symlinks=True, dirs_exist_ok=True)
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


def _supervise(
    path: str,
    argv: list[str],
    environment: dict[str, str],
    cwd: str,
    folder: str,
    *,
    attach: bool,
    interactive: bool,
) -> NoReturn:
    """Start the main process, write its PID to descriptor 3 and later its status to `exit`."""
    import subprocess

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
    os.write(3, f"{child.pid}\n".encode())
    os.close(3)
    for target in (0, 1, 2):
        os.dup2(null, target)
    status = child.wait()
    with open(f"{folder}/exit.new", "w") as file:
        file.write(str(status if status >= 0 else 128 - status))
    os.replace(f"{folder}/exit.new", f"{folder}/exit")
    os._exit(0)


def apply_limits(record: Record) -> None:
    """Set `--ulimit nofile=SOFT[:HARD]` for this process and its children. Raises `DockerError`."""
    import resource

    for word in record["HostConfig"]["Ulimits"]:
        name, _, values = word.partition("=")
        if name == "nofile":
            soft, _, hard = values.partition(":")
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard or soft)))
            except (ValueError, OSError):
                text = "error setting rlimit type 7: operation not permitted: unknown"
                raise DockerError(f"OCI runtime create failed: {text}", 126) from None


def start_all_at_boot(store: Store) -> None:
    """Mark containers exited and apply restart policies, as the daemon does at boot.

    No device node exists yet at that time.
    """
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
                print_error(str(error))
