"""The folder, environment and program of a container's process."""

from __future__ import annotations

import os

from . import container_processes
from .store import DockerError, Record, Store, daemon_error, is_executable, which

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import NoReturn


def rootfs_of(store: Store, record: Record) -> str:
    """The folder that stands for the container's `/`."""
    return store.folder("containers", record["Id"]) + "/rootfs"


def environment_of(
    store: Store, record: Record, extra: list[str], user: str | None = None
) -> dict[str, str]:
    """The environment of a process of the container; PATH leads through the container's folder."""
    rootfs = rootfs_of(store, record)
    values = {"HOME": f"{rootfs}/root", "HOSTNAME": record["Config"]["Hostname"]}
    values.update(dict(word.partition("=")[::2] for word in record["Config"]["Env"]))
    apply_variables(values, extra)
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


def apply_variables(values: dict[str, str], words: list[str]) -> None:
    """Apply words of `--env`; a name without a value takes the client's value, or is removed."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals or name in os.environ:
            values[name] = value if equals else os.environ[name]
        else:
            values.pop(name, None)


def namespace_of(store: Store, record: Record) -> str:
    """The PID namespace: the container's id, the id of the container that it joined, or `host`."""
    kind, _, name = record["HostConfig"]["PidMode"].partition(":")
    if kind == "host":
        return "host"
    joined = store.container(name) if kind == "container" else None
    return str((joined or record)["Id"])


def in_rootfs(store: Store, record: Record, word: str) -> str:
    """An argument, with the container's folder in front where it is the path of a file in it."""
    rootfs = rootfs_of(store, record)
    if word.startswith("/") and not word.startswith(rootfs) and os.path.isfile(rootfs + word):
        return rootfs + word
    return word


def make_working_folder(store: Store, record: Record, wanted: str | None) -> str:
    """The folder in which a process starts, created if necessary, as the daemon does."""
    folder = rootfs_of(store, record) + (
        store.host_path(wanted) if wanted else record["Config"]["WorkingDir"] or "/"
    )
    os.makedirs(folder, exist_ok=True)
    return folder


_CREATE_FAILED = (
    "failed to create task for container: failed to create shim task: "
    "OCI runtime create failed: runc create failed: unable to start container process"
)
_EXEC_FAILED = "OCI runtime exec failed: exec failed: unable to start container process"
_PROGRAM_FOLDERS = ("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")


def find_program(
    store: Store, record: Record, name: str, environment: dict[str, str], *, doing: str = "create"
) -> str:
    """The program's path on this machine.

    Raises `DockerError` in runc's words, with 127 for a missing program and 126 for one that is
    not executable; `doing` is `create` or `exec`.
    """

    def fail(why: str, status: int) -> NoReturn:
        if doing == "exec":
            raise DockerError(f'{_EXEC_FAILED}: exec: "{name}": {why}: unknown', status)
        daemon_error(f'{_CREATE_FAILED}: exec: "{name}": {why}: unknown', status)

    if "/" in name:
        path = _find_by_path(rootfs_of(store, record), name, environment["PATH"])
        if not os.path.exists(path):
            fail(f"stat {name}: no such file or directory", 127)
    else:
        path = _find_on_path(name, environment["PATH"])
        if not path:
            fail("executable file not found in $PATH", 127)
    if not is_executable(path):
        fail("permission denied", 126)
    return path


def _find_by_path(rootfs: str, name: str, search_path: str) -> str:
    """The path of the file in the container, or of the mock's stand-in for a missing program."""
    path = name if name.startswith(rootfs) else rootfs + name
    if not os.path.exists(path) and name.startswith(_PROGRAM_FOLDERS):
        return which(os.path.basename(name), search_path) or path
    return path


def _find_on_path(name: str, search_path: str) -> str:
    """The first executable of that name, else the first file; empty without either."""
    files = (f"{folder}/{name}" for folder in search_path.split(":"))
    return which(name, search_path) or next(filter(os.path.isfile, files), "")
