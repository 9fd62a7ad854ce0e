"""Containers of the docker stand-in: a folder that stands for `/`, real processes, Docker's own refusals."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any

from . import processes
from .registry import pull
from .store import DockerError, Record, Store, complain, daemon_error, new_id, now, runnable, say, which

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+\Z")
_FOLDERS = ("/tmp", "/root", "/dev/shm", "/run", "/etc", "/opt", "/home", "/usr/local/bin", "/usr/bin", "/var/log", "/var/tmp", "/var/lib")
_CDI = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
    "container process: error during container init: error running prestart hook #0: exit status 1, stdout: , stderr: Using requested mode "
    "'cdi'\ninvoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. Please use the "
    "NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead: unknown"
)


def state_of(store: Store, record: Record) -> Record:
    """The record's State as it is now: the processes decide."""
    state = record["State"]
    if state["Status"] == "running" and not processes.alive(state["Pid"], state["Ticks"]):
        state.update(Status="exited", Running=False, Pid=0, ExitCode=_exit_code(store, record), FinishedAt=now())
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
            if processes.start_ticks(record["State"].get("Supervisor", 0)) == "":
                break
            time.sleep(0.01)
    return 255


# --- create ----------------------------------------------------------------------------------------------------------


def create(store: Store, options: dict[str, Any], image_ref: str, command: list[str]) -> Record:
    """The record and the folder of a new container. Raises what the daemon refuses before anything starts."""
    image = store.image(image_ref)
    if image is None:
        complain(f"Unable to find image '{image_ref if ':' in image_ref.rsplit('/', 1)[-1] else image_ref + ':latest'}' locally")
        image = pull(store, image_ref)
    name = options["name"] or new_id(str(time.time_ns()), str(os.getpid()))[:12]
    _check(store, options, name)
    identity = new_id(name, str(time.time_ns()), str(os.getpid()))
    config = image["Config"]
    entrypoint = config.get("Entrypoint") if options["entrypoint"] is None else ([options["entrypoint"]] if options["entrypoint"] else [])
    arguments = command or ((config.get("Cmd") or []) if options["entrypoint"] is None else [])
    record: Record = {
        "Id": identity,
        "Name": f"/{name}",
        "Created": now(),
        "Image": image["Id"],
        "Path": ([*(entrypoint or []), *arguments] or [""])[0],
        "Args": [*(entrypoint or []), *arguments][1:],
        "State": {"Status": "created", "Running": False, "Pid": 0, "Ticks": "", "ExitCode": 0, "Error": "", "StartedAt": "", "FinishedAt": ""},
        "Config": {
            "Image": image_ref,
            "Env": _environment(store, config.get("Env") or [], options),
            "Entrypoint": entrypoint or None,
            "Cmd": arguments or None,
            "Labels": {**(config.get("Labels") or {}), **dict(word.partition("=")[::2] for word in options["label"])},
            "WorkingDir": options["workdir"] or config.get("WorkingDir") or "",
            "User": options["user"] or config.get("User") or "",
            "Hostname": options["hostname"] or identity[:12],
            "Tty": options["tty"],
        },
        "HostConfig": {
            "Binds": [store.host_path(word) for word in options["volume"]],
            "Privileged": options["privileged"],
            "NetworkMode": options["network"] or "default",
            "IpcMode": options["ipc"] or "private",
            "PidMode": options["pid"] or "",
            "ShmSize": _size(options["shm_size"] or "64m"),
            "Init": options["init"],
            "Devices": [_device(store, word) for word in options["device"]],
            "Ulimits": options["ulimit"],
            "RestartPolicy": {"Name": (options["restart"] or "no").partition(":")[0]},
            "Runtime": options["runtime"] or "runc",
            "DeviceRequests": [options["gpus"]] if options["gpus"] else None,
            "AutoRemove": options["rm"],
        },
        "Mounts": [_mount(store, word) for word in options["volume"]] + [_long_mount(store, word) for word in options["mount"]],
    }
    folder = store.folder("containers", identity) + "/rootfs"
    rootfs = store.folder("images", image["Id"]) + "/rootfs"
    if os.path.isdir(rootfs):
        shutil.copytree(rootfs, folder, symlinks=True)
    for place in (*_FOLDERS, record["Config"]["WorkingDir"] or "/"):
        os.makedirs(folder + place, exist_ok=True)
    store.save("containers", identity, record)
    return record


def _check(store: Store, options: dict[str, Any], name: str) -> None:
    if not _NAME.match(name):
        daemon_error(f"Invalid container name ({name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", 125)
    taken = store.container(name) if options["name"] else None
    if taken is not None and taken["Name"] == f"/{name}":
        daemon_error(
            f'Conflict. The container name "/{name}" is already in use by container "{taken["Id"]}". '
            "You have to remove (or rename) that container to be able to reuse that name.",
            125,
        )
    if options["runtime"] not in (None, "runc", "io.containerd.runc.v2"):
        daemon_error(f"unknown or invalid runtime name: {options['runtime']}", 125)
    if options["restart"] and options["restart"].partition(":")[0] not in ("no", "always", "unless-stopped", "on-failure"):
        daemon_error(f"invalid restart policy: unknown policy '{options['restart']}'; use one of 'no', 'always', 'on-failure', or 'unless-stopped'", 125)
    if options["rm"] and options["restart"] not in (None, "no"):
        raise DockerError("docker: Conflicting options: --restart and --rm.", 125)


def _environment(store: Store, inherited: list[str], options: dict[str, Any]) -> list[str]:
    values = dict(word.partition("=")[::2] for word in inherited)
    words = []
    for file in options["env_file"]:
        with open(store.real(file)) as lines:
            words += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for word in [*words, *options["env"]]:
        name, equals, value = word.partition("=")
        if equals:
            values[name] = value
        elif name in os.environ:
            values[name] = os.environ[name]
    return [f"{name}={value}" for name, value in values.items()]


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([bkmgBKMG]?)[bB]?", text)
    if not found:
        raise DockerError(f'docker: invalid argument "{text}" for "--shm-size" flag: invalid size: \'{text}\'\nSee \'docker run --help\'.', 125)
    return int(found.group(1)) * 1024 ** "bkmg".index((found.group(2) or "b").lower())


def _device(store: Store, word: str) -> Record:
    source, _, rest = store.host_path(word).partition(":")
    target = rest.partition(":")[0] or source
    return {"PathOnHost": source, "PathInContainer": target}


def _mount(store: Store, word: str) -> Record:
    parts = store.host_path(word).split(":")
    if len(parts) == 1:
        parts = [new_id(word, str(time.time_ns())), parts[0]]
    source, target, mode = parts[0], parts[1], (parts[2] if len(parts) > 2 else "")
    if not target.startswith("/"):
        daemon_error(f"invalid volume specification: '{word}': invalid mount config for type \"volume\": invalid mount path: '{target}' mount path must be absolute", 125)
    return _mount_record(store, source, target, mode)


def _long_mount(store: Store, word: str) -> Record:
    values = dict(part.partition("=")[::2] for part in word.split(","))
    source = values.get("source", values.get("src", ""))
    target = values.get("target", values.get("dst", values.get("destination", "")))
    if values.get("type") == "bind" and not os.path.exists(store.real(source)):
        daemon_error(f'invalid mount config for type "bind": bind source path does not exist: {store.host_path(source)}', 125)
    return _mount_record(store, store.host_path(source), target, "ro" if "readonly" in values or "ro" in values else "")


def _mount_record(store: Store, source: str, target: str, mode: str) -> Record:
    if source.startswith("/"):
        return {"Type": "bind", "Source": source, "Destination": target, "Mode": mode, "RW": "ro" not in mode.split(",")}
    make_volume(store, source, {})
    return {"Type": "volume", "Name": source, "Source": f"/var/lib/docker/volumes/{source}/_data", "Destination": target, "Mode": mode, "RW": "ro" not in mode.split(",")}


def make_volume(store: Store, name: str, labels: dict[str, str]) -> Record:
    """A named volume, made when it is not there."""
    if not _NAME.match(name):
        daemon_error(f'create {name}: "{name}" includes invalid characters for a local volume name, only "[a-zA-Z0-9][a-zA-Z0-9_.-]" are allowed. If you intended to pass a host directory, use absolute path', 125)
    try:
        return store.load("volumes", name)
    except FileNotFoundError:
        record: Record = {"Name": name, "Driver": "local", "Created": now(), "CreatedAt": now(), "Labels": labels, "Mountpoint": f"/var/lib/docker/volumes/{name}/_data", "Scope": "local"}
        store.save("volumes", name, record)
        os.makedirs(store.folder("volumes", name) + "/_data", exist_ok=True)
        return record


# --- start and stop --------------------------------------------------------------------------------------------------


def rootfs_of(store: Store, record: Record) -> str:
    """The folder that stands for the container's `/`."""
    return store.folder("containers", record["Id"]) + "/rootfs"


def start(store: Store, record: Record, *, attach: bool = False, interactive: bool = False) -> int:
    """Start the main process. Attached, wait for it and return its status, else return 0."""
    if state_of(store, record)["Status"] == "running":
        return 0
    _prepare_devices(store, record)
    if record["HostConfig"]["DeviceRequests"]:
        daemon_error(_CDI, 125)
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
    pid, supervisor = _launch(path, arguments, environment, working_folder(store, record, None), folder, attach=attach, interactive=interactive)
    record["State"] = {
        **record["State"],
        **{"Status": "running", "Running": True, "Pid": pid, "Ticks": processes.start_ticks(pid), "Supervisor": supervisor},
        **{"ExitCode": 0, "Error": "", "StartedAt": now(), "Stopped": False},
    }
    store.save("containers", record["Id"], record)
    if not attach:
        return 0
    try:
        os.waitpid(supervisor, 0)
    except KeyboardInterrupt:
        processes.end(record["Id"], pid, record["State"]["Ticks"], number=signal.SIGINT, grace_s=10)
    return int(state_of(store, record)["ExitCode"])


def _prepare_devices(store: Store, record: Record) -> None:
    folder = rootfs_of(store, record) + "/dev"
    for name in os.listdir(folder):
        if name.startswith("nvidia"):
            os.unlink(f"{folder}/{name}")
    wanted = list(record["HostConfig"]["Devices"])
    if record["HostConfig"]["Privileged"]:
        wanted += [{"PathOnHost": f"/dev/{name}", "PathInContainer": f"/dev/{name}"} for name in os.listdir(store.real("/dev")) if name.startswith("nvidia")]
    for device in wanted:
        if not os.path.lexists(store.real(device["PathOnHost"])):
            text = f'error gathering device information while adding custom device "{device["PathOnHost"]}": no such file or directory'
            record["State"].update(Status="created" if not record["State"]["StartedAt"] else "exited", Error=text, ExitCode=128)
            store.save("containers", record["Id"], record)
            daemon_error(text, 125)
        target = rootfs_of(store, record) + device["PathInContainer"]
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w"):
            pass


def _bind(store: Store, record: Record, mount: Record) -> None:
    """A mount is a link, but for the driver's folders: those are taken as they are now, mount options included.

    A container keeps the options its mounts had when it started, and the installer replaces the folders. A noexec folder
    mounted read-only is executable in the container, mounted read-write it is not (measured with runc 1.1.5).
    """
    source = store.real(mount["Source"])
    if not os.path.exists(source):
        os.makedirs(source)  # -v makes missing folders
    target = rootfs_of(store, record) + mount["Destination"].rstrip("/")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(target):
        os.unlink(target)
    elif os.path.isdir(target):
        if mount["Type"] == "volume" and not os.listdir(source):
            shutil.copytree(target, source, symlinks=True, dirs_exist_ok=True)  # a new volume starts with the image's files
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
                os.chmod(f"{target}/{name}", 0o755)


def environment_of(store: Store, record: Record, extra: list[str], user: str | None = None) -> dict[str, str]:
    """What a process of the container sees. PATH is led through the container's folder; all else is as it was given."""
    rootfs = rootfs_of(store, record)
    values = {"HOME": f"{rootfs}/root", "HOSTNAME": record["Config"]["Hostname"]}
    values.update(dict(word.partition("=")[::2] for word in [*record["Config"]["Env"], *extra]))
    path = values.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    mock = os.path.dirname(store.state)
    tools = [f"{mock}/mock/container-bin", f"{mock}/sysbin"]
    values["PATH"] = ":".join([*(entry if entry.startswith(rootfs) else rootfs + entry for entry in path.split(":") if entry), *tools])
    who = (user or record["Config"]["User"] or "root").partition(":")[0]
    values.update({"PROVISION_MOCK_ROOT": rootfs, "PROVISION_MOCK_STATE": store.state, processes.MARK: record["Id"]})
    values["PROVISION_MOCK_SUDO"] = "1" if who in ("root", "0") else ""
    return values


def in_rootfs(store: Store, record: Record, word: str) -> str:
    """An argument that names a file of the container is led to it: only a real container has a `/` of its own."""
    rootfs = rootfs_of(store, record)
    if word.startswith("/") and not word.startswith(rootfs) and os.path.isfile(rootfs + word):
        return rootfs + word
    return word


def working_folder(store: Store, record: Record, wanted: str | None) -> str:
    """The folder a process starts in, made when it is missing, as the daemon does."""
    folder = rootfs_of(store, record) + (store.host_path(wanted) if wanted else record["Config"]["WorkingDir"] or "/")
    os.makedirs(folder, exist_ok=True)
    return folder


def find_program(store: Store, record: Record, name: str, environment: dict[str, str], *, doing: str = "create") -> str:
    """The program's path on this machine. Raises runc's words and 127 or 126 when it cannot be run."""
    head = "OCI runtime exec failed: exec failed: unable to start container process" if doing == "exec" else (
        "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process"
    )
    rootfs = rootfs_of(store, record)
    if "/" in name:
        path = rootfs + name if not name.startswith(rootfs) else name
        if not os.path.exists(path) and name.startswith(("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")):
            path = which(os.path.basename(name), environment["PATH"]) or path
        if not os.path.exists(path):
            _runtime_error(f'{head}: exec: "{name}": stat {name}: no such file or directory: unknown', 127, doing)
    else:
        found = which(name, environment["PATH"])
        if found is None:
            hidden = next((f"{folder}/{name}" for folder in environment["PATH"].split(":") if os.path.isfile(f"{folder}/{name}")), None)
            if hidden is None:
                _runtime_error(f'{head}: exec: "{name}": executable file not found in $PATH: unknown', 127, doing)
            found = str(hidden)
        path = found
    if not runnable(path):
        _runtime_error(f'{head}: exec: "{name}": permission denied: unknown', 126, doing)
    return path


def _runtime_error(text: str, status: int, doing: str) -> None:
    if doing == "exec":
        raise DockerError(text, status)
    daemon_error(text, status)


def _launch(path: str, argv: list[str], environment: dict[str, str], cwd: str, folder: str, *, attach: bool, interactive: bool) -> tuple[int, int]:
    """Start the main process under a supervisor, which writes down its exit status. Returns both pids."""
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


def stop(store: Store, record: Record, *, grace_s: float = 10.0, number: int = signal.SIGTERM) -> None:
    """End the container's processes; a container that does not run is left alone."""
    state = state_of(store, record)
    if state["Status"] != "running":
        return
    main, ticks = state["Pid"], state["Ticks"]
    if not record["HostConfig"]["Init"] and number == signal.SIGTERM and os.path.basename(record["Path"]) in ("sleep", "tail", "sh", "bash"):
        number, grace_s = signal.SIGKILL, 0  # as process 1 these ignore SIGTERM: Docker waits, then kills; the wait is left out
    processes.end(record["Id"], main, ticks, number=number, grace_s=grace_s)
    state_of(store, record)
    record["State"]["Stopped"] = True
    store.save("containers", record["Id"], record)


def remove(store: Store, record: Record, *, force: bool, volumes: bool = False) -> None:
    """Remove the container; its anonymous volumes too when asked."""
    if state_of(store, record)["Status"] == "running":
        if not force:
            name = record["Name"]
            daemon_error(f'cannot remove container "{name}": container is running: stop the container before removing or force remove')
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
            record["State"].update(Status="exited", Running=False, Pid=0, Ticks="", ExitCode=255, FinishedAt=now())
            store.save("containers", record["Id"], record)
        policy = record["HostConfig"]["RestartPolicy"]["Name"]
        if policy == "always" or (policy in ("unless-stopped", "on-failure") and was_running and not record["State"].get("Stopped")):
            try:
                start(store, record)
            except DockerError as error:
                complain(str(error))


def apply_limits(record: Record) -> None:
    """`--ulimit nofile=SOFT[:HARD]` for this process and what it starts. Raises runc's words where the machine forbids it."""
    for word in record["HostConfig"]["Ulimits"]:
        name, _, values = word.partition("=")
        if name == "nofile":
            soft, _, hard = values.partition(":")
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard or soft)))
            except (ValueError, OSError):
                raise DockerError("OCI runtime create failed: error setting rlimit type 7: operation not permitted: unknown", 126) from None


def run_in(store: Store, record: Record, options: dict[str, Any], command: list[str]) -> int:
    """docker exec: a real process in the container. With a terminal it takes this one's place."""
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
        os.execve(path, argv, environment)
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
    for line in lines if tail in (None, "all") else lines[len(lines) - min(int(tail), len(lines)) :]:
        say(line)
