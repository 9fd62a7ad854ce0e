"""How a process of a container finds its folder, its environment and its program."""

from __future__ import annotations

import os

from . import container_processes
from .store import DockerError, Record, Store, daemon_error, runnable, which


def rootfs_of(store: Store, record: Record) -> str:
    """The folder that stands for the container's `/`."""
    return store.folder("containers", record["Id"]) + "/rootfs"


def environment_of(
    store: Store, record: Record, extra: list[str], user: str | None = None
) -> dict[str, str]:
    """What a process of the container sees. PATH is led through the container's folder; all else is as it was given."""
    rootfs = rootfs_of(store, record)
    values = {"HOME": f"{rootfs}/root", "HOSTNAME": record["Config"]["Hostname"]}
    values.update(dict(word.partition("=")[::2] for word in record["Config"]["Env"]))
    put(values, extra)
    path = values.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    mock = os.path.dirname(store.state)
    tools = [f"{mock}/mock/container-bin", f"{mock}/sysbin"]
    values["PATH"] = ":".join(
        [
            *(
                entry if entry.startswith(rootfs) else rootfs + entry
                for entry in path.split(":")
                if entry
            ),
            *tools,
        ]
    )
    who = (user or record["Config"]["User"] or "root").partition(":")[0]
    values.update(
        {
            "PROVISION_MOCK_ROOT": rootfs,
            "PROVISION_MOCK_STATE": store.state,
            container_processes.MARK: record["Id"],
        }
    )
    values["PROVISION_MOCK_SUDO"] = "1" if who in ("root", "0") else ""
    values["PROVISION_MOCK_UID"] = "0" if who == "root" else who if who.isdigit() else "1000"
    values["PROVISION_MOCK_PIDNS"] = namespace_of(store, record)
    return values


def put(values: dict[str, str], words: list[str]) -> None:
    """Variables as `--env` names them: one without a value is the client's own, or is taken out."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals or name in os.environ:
            values[name] = value if equals else os.environ[name]
        else:
            values.pop(name, None)


def namespace_of(store: Store, record: Record) -> str:
    """Whose processes it sees: its own, those of the container that it joined, or the host's."""
    kind, _, name = record["HostConfig"]["PidMode"].partition(":")
    if kind == "host":
        return "host"
    joined = store.container(name) if kind == "container" else None
    return str((joined or record)["Id"])


def in_rootfs(store: Store, record: Record, word: str) -> str:
    """An argument that names a file of the container is led to it: only a real container has a `/` of its own."""
    rootfs = rootfs_of(store, record)
    if word.startswith("/") and not word.startswith(rootfs) and os.path.isfile(rootfs + word):
        return rootfs + word
    return word


def working_folder(store: Store, record: Record, wanted: str | None) -> str:
    """The folder a process starts in, made when it is missing, as the daemon does."""
    folder = rootfs_of(store, record) + (
        store.host_path(wanted) if wanted else record["Config"]["WorkingDir"] or "/"
    )
    os.makedirs(folder, exist_ok=True)
    return folder


def find_program(
    store: Store, record: Record, name: str, environment: dict[str, str], *, doing: str = "create"
) -> str:
    """The program's path on this machine. Raises runc's words and 127 or 126 when it cannot be run."""
    head = (
        "OCI runtime exec failed: exec failed: unable to start container process"
        if doing == "exec"
        else (
            "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: "
            "unable to start container process"
        )
    )
    rootfs = rootfs_of(store, record)
    if "/" in name:
        path = rootfs + name if not name.startswith(rootfs) else name
        if not os.path.exists(path) and name.startswith(
            ("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")
        ):
            path = which(os.path.basename(name), environment["PATH"]) or path
        if not os.path.exists(path):
            _runtime_error(
                f'{head}: exec: "{name}": stat {name}: no such file or directory: unknown',
                127,
                doing,
            )
    else:
        found = which(name, environment["PATH"])
        if found is None:
            hidden = next(
                (
                    f"{folder}/{name}"
                    for folder in environment["PATH"].split(":")
                    if os.path.isfile(f"{folder}/{name}")
                ),
                None,
            )
            if hidden is None:
                _runtime_error(
                    f'{head}: exec: "{name}": executable file not found in $PATH: unknown',
                    127,
                    doing,
                )
            found = str(hidden)
        path = found
    if not runnable(path):
        _runtime_error(f'{head}: exec: "{name}": permission denied: unknown', 126, doing)
    return path


def _runtime_error(text: str, status: int, doing: str) -> None:
    if doing == "exec":
        raise DockerError(text, status)
    daemon_error(text, status)
