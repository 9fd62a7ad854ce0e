"""docker create: the record and the folder of a new container."""

from __future__ import annotations

import os
import re
import time

from .container_program import apply_variables
from .mounts import parse_mount, parse_volume
from .registry import pull
from .store import DockerError, Record, Store, daemon_error, new_id, now, print_error, with_tag

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+\Z")
_FOLDERS = (
    "/tmp",  # noqa: S108 - a container's own
    "/root",
    "/dev/shm",  # noqa: S108 - a container's own
    "/run",
    "/etc",
    "/opt",
    "/home",
    "/usr/local/bin",
    "/usr/bin",
    "/var/log",
    "/var/tmp",  # noqa: S108 - a container's own
    "/var/lib",
)


def create(store: Store, options: dict[str, Any], image_ref: str, command: list[str]) -> Record:
    """Create a container, with its image pulled if necessary. Raises `DockerError`."""
    image = store.image(image_ref)
    if image is None:
        print_error(f"Unable to find image '{with_tag(image_ref)}' locally")
        image = pull(store, image_ref)
    name = options["name"] or new_id(str(time.time_ns()), str(os.getpid()))[:12]
    _check(store, options, name)
    identity = new_id(name, str(time.time_ns()), str(os.getpid()))
    record: Record = {
        "Id": identity,
        "Name": f"/{name}",
        "Created": now(),
        "Image": image["Id"],
        "State": dict(_NEVER_RAN),
        "Config": _config(store, options, image["Config"], image_ref, command),
        "HostConfig": _host_config(store, options),
        "Mounts": [parse_volume(store, word) for word in options["volume"]]
        + [parse_mount(store, word) for word in options["mount"]],
    }
    program = [*(record["Config"]["Entrypoint"] or []), *(record["Config"]["Cmd"] or [])]
    record |= {"Path": (program or [""])[0], "Args": program[1:]}
    record["Config"]["Hostname"] = options["hostname"] or identity[:12]
    _make_rootfs(store, record)
    store.save("containers", identity, record)
    return record


_NEVER_RAN = {
    "Status": "created",
    "Running": False,
    "Pid": 0,
    "Ticks": "",
    "ExitCode": 0,
    "Error": "",
    "StartedAt": "",
    "FinishedAt": "",
}


def _config(
    store: Store, options: dict[str, Any], image: dict[str, Any], image_ref: str, command: list[str]
) -> Record:
    """The container's Config: its image's, overridden by the options."""
    overridden = options["entrypoint"] is not None
    entrypoint = (
        [word for word in [options["entrypoint"]] if word]
        if overridden
        else image.get("Entrypoint")
    )
    arguments = command or ([] if overridden else image.get("Cmd"))
    return {
        "Image": image_ref,
        "Env": _environment(store, image.get("Env") or [], options),
        "Entrypoint": entrypoint or None,
        "Cmd": arguments or None,
        "Labels": {
            **(image.get("Labels") or {}),
            **dict(word.partition("=")[::2] for word in options["label"]),
        },
        "WorkingDir": options["workdir"] or image.get("WorkingDir") or "",
        "User": options["user"] or image.get("User") or "",
        "Tty": options["tty"],
    }


def _host_config(store: Store, options: dict[str, Any]) -> Record:
    return {
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
    }


def _make_rootfs(store: Store, record: Record) -> None:
    import shutil

    folder = store.folder("containers", record["Id"]) + "/rootfs"
    rootfs = store.folder("images", record["Image"]) + "/rootfs"
    if os.path.isdir(rootfs):
        shutil.copytree(rootfs, folder, symlinks=True)
    for path in (*_FOLDERS, record["Config"]["WorkingDir"] or "/"):
        os.makedirs(folder + path, exist_ok=True)
    if "alpine" in record["Config"]["Image"]:  # without glibc: programs of the driver fail there
        os.makedirs(f"{folder}/etc", exist_ok=True)
        with open(f"{folder}/etc/alpine-release", "w") as file:
            file.write("3.22.1\n")


def _check(store: Store, options: dict[str, Any], name: str) -> None:
    if not _NAME.match(name):
        daemon_error(
            f"Invalid container name ({name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", 125
        )
    taken = store.container(name) if options["name"] else None
    if taken is not None and taken["Name"] == f"/{name}":
        daemon_error(
            f'Conflict. The container name "/{name}" is already in use by '
            f'container "{taken["Id"]}". '
            "You have to remove (or rename) that container to be able to reuse that name.",
            125,
        )
    if options["runtime"] not in (None, "runc", "io.containerd.runc.v2"):
        daemon_error(f"unknown or invalid runtime name: {options['runtime']}", 125)
    if options["restart"] and options["restart"].partition(":")[0] not in (
        "no",
        "always",
        "unless-stopped",
        "on-failure",
    ):
        daemon_error(
            f"invalid restart policy: unknown policy '{options['restart']}'; "
            "use one of 'no', 'always', 'on-failure', or 'unless-stopped'",
            125,
        )
    if options["rm"] and options["restart"] not in (None, "no"):
        raise DockerError("docker: Conflicting options: --restart and --rm.", 125)


def _environment(store: Store, inherited: list[str], options: dict[str, Any]) -> list[str]:
    values = dict(word.partition("=")[::2] for word in inherited)
    words = []
    for file in options["env_file"]:
        with open(store.real(file)) as lines:
            words += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    apply_variables(values, [*words, *options["env"]])
    return [f"{name}={value}" for name, value in values.items()]


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([bkmgBKMG]?)[bB]?", text)
    if not found:
        raise DockerError(
            f'docker: invalid argument "{text}" for "--shm-size" flag: '
            f"invalid size: '{text}'\nSee 'docker run --help'.",
            125,
        )
    return int(found.group(1)) << 10 * "bkmg".index((found.group(2) or "b").lower())


def _device(store: Store, word: str) -> Record:
    source, _, rest = store.host_path(word).partition(":")
    target = rest.partition(":")[0] or source
    return {"PathOnHost": source, "PathInContainer": target}
