"""Commands about the engine: version, info, disk use, prune, and what happens at boot."""

from __future__ import annotations

import os

from . import command_line, container_start
from .command_table import Words, apply_format, command
from .container_state import state_of
from .store import DockerError, Store, print_line

VERSION = "27.5.1"

# --- the engine -----------------------------------------------------------------------------------


@command("version")
def version(store: Store, words: Words) -> int:
    """`docker version`."""
    del store
    options, _ = command_line.parse("version", command_line.FORMAT, words)
    side = {
        "Version": VERSION,
        "ApiVersion": "1.47",
        "MinAPIVersion": "1.24",
        "Os": "linux",
        "Arch": "amd64",
        "GoVersion": "go1.23.4",
    }
    if options["format"]:
        print_line(apply_format(options["format"], {"Client": side, "Server": side}))
        return 0
    for name in ("Client:", "Server: Docker Engine - Community\n Engine:"):
        print_line(
            f"{name}\n Version:           {VERSION}\n API version:       1.47\n"
            " OS/Arch:           linux/amd64\n"
        )
    return 0


@command("info", "system info")
def info(store: Store, words: Words) -> int:
    """`docker info`."""
    options, _ = command_line.parse("info", command_line.FORMAT, words)
    records = store.all("containers")
    running = sum(state_of(store, record)["Running"] for record in records)
    data = {
        "ServerVersion": VERSION,
        "Containers": len(records),
        "ContainersRunning": running,
        "Images": len(store.all("images")),
        "Driver": "overlay2",
        "DockerRootDir": "/var/lib/docker",
        "OperatingSystem": "Container-Optimized OS from Google",
        "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}},
        "DefaultRuntime": "runc",
        "CgroupVersion": "2",
        "OSType": "linux",
        "Architecture": "x86_64",
        "NCPU": os.cpu_count(),
        "Name": _read(store.real("/etc/hostname")),
    }
    print_line(
        apply_format(options["format"], data)
        if options["format"]
        else "\n".join(f" {key}: {value}" for key, value in data.items())
    )
    return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


@command("system df")
def system_df(store: Store, words: Words) -> int:
    """`docker system df`."""
    options, _ = command_line.parse(
        "system df", {"format": (command_line.ONE, ""), "verbose": (command_line.BOOL, "v")}, words
    )
    rows = [
        {"Type": name, "TotalCount": str(len(store.all(kind))), "Size": "0B", "Reclaimable": "0B"}
        for name, kind in _KINDS
    ]
    for row in rows:
        print_line(
            apply_format(options["format"], row)
            if options["format"]
            else f"{row['Type']:<16}{row['TotalCount']:<10}{row['Size']:<10}{row['Reclaimable']}"
        )
    return 0


_KINDS = (("Images", "images"), ("Containers", "containers"), ("Local Volumes", "volumes"))


@command("system prune", "image prune", "container prune", "volume prune", "builder prune")
def prune(store: Store, words: Words) -> int:
    """`docker system prune --force`. Raises `DockerError` without that flag."""
    options, _ = command_line.parse("prune", command_line.PRUNE, words)
    if not options["force"]:
        raise DockerError("docker: the mock prunes with --force only")
    used = set()
    for record in store.all("containers"):
        if state_of(store, record)["Status"] == "running":
            used.add(record["Image"])
        else:
            store.drop("containers", record["Id"])
    for record in store.all("images"):
        if record["Id"] not in used and (options["all"] or not record["RepoTags"]):
            store.drop("images", record["Id"])
    print_line("Total reclaimed space: 0B")
    return 0


@command("_boot")
def boot(store: Store, words: Words) -> int:
    """Do what the daemon does when the machine starts; not a command of docker."""
    del words
    with store.lock():
        container_start.start_all_at_boot(store)
    return 0
