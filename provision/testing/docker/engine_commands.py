"""Commands about the engine, inspection and volumes. A command that is in no table is not simulated and says so."""

from __future__ import annotations

import os

from . import command_line, container_create, containers
from .command_table import Words, command, formatted, need
from .store import DockerError, Record, Store, complain, daemon_error, say

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
        say(formatted(options["format"], {"Client": side, "Server": side}))
        return 0
    for name in ("Client:", "Server: Docker Engine - Community\n Engine:"):
        say(
            f"{name}\n Version:           {VERSION}\n API version:       1.47\n OS/Arch:           linux/amd64\n"
        )
    return 0


@command("info", "system info")
def info(store: Store, words: Words) -> int:
    """`docker info`."""
    options, _ = command_line.parse("info", command_line.FORMAT, words)
    records = store.all("containers")
    running = sum(containers.state_of(store, record)["Running"] for record in records)
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
    say(
        formatted(options["format"], data)
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
        say(
            formatted(options["format"], row)
            if options["format"]
            else f"{row['Type']:<16}{row['TotalCount']:<10}{row['Size']:<10}{row['Reclaimable']}"
        )
    return 0


_KINDS = (("Images", "images"), ("Containers", "containers"), ("Local Volumes", "volumes"))


@command("system prune", "image prune", "container prune", "volume prune", "builder prune")
def prune(store: Store, words: Words) -> int:
    """`docker system prune`."""
    options, _ = command_line.parse("prune", command_line.PRUNE, words)
    if not options["force"]:
        raise DockerError("docker: the mock prunes with --force only")
    used = set()
    for record in store.all("containers"):
        if containers.state_of(store, record)["Status"] == "running":
            used.add(record["Image"])
        else:
            store.drop("containers", record["Id"])
    for record in store.all("images"):
        if record["Id"] not in used and (options["all"] or not record["RepoTags"]):
            store.drop("images", record["Id"])
    say("Total reclaimed space: 0B")
    return 0


# --- inspection -----------------------------------------------------------------------------------


@command("image inspect")
def image_inspect(store: Store, words: Words) -> int:
    """`docker image inspect`."""
    return _inspect(store, words, "image inspect", ("image",))


@command("container inspect")
def container_inspect(store: Store, words: Words) -> int:
    """`docker container inspect`."""
    return _inspect(store, words, "container inspect", ("container",))


@command("inspect")
def inspect(store: Store, words: Words) -> int:
    """`docker inspect`."""
    return _inspect(store, words, "inspect", ("container", "image", "volume"))


def _inspect(store: Store, words: Words, name: str, kinds: tuple[str, ...]) -> int:
    options, rest = command_line.parse(name, command_line.FORMAT, words)
    need(name, rest, 1)
    found, missing = [], []
    for word in rest:
        record = look_up(store, word, (options["type"],) if options["type"] else kinds)
        if record is None:
            missing.append(word)
        elif options["format"]:
            say(formatted(options["format"], record))
        else:
            found.append(record)
    if not options["format"]:
        import json

        say(json.dumps(found, indent=4))
    elif missing and not found and len(missing) == len(rest):
        say("")
    for word in missing:
        what = f"No such {kinds[0]}: {word}" if len(kinds) == 1 else f"No such object: {word}"
        complain(f"Error response from daemon: {what}" if len(kinds) == 1 else f"Error: {what}")
    return 1 if missing else 0


def look_up(store: Store, word: str, kinds: tuple[str, ...]) -> Record | None:
    """The first record of that name among `kinds`, a container's state brought up to date; None when there is none."""
    if "container" in kinds and (record := store.container(word)) is not None:
        containers.state_of(store, record)
        return record
    if "image" in kinds and (record := store.image(word)) is not None:
        return record
    if "volume" in kinds:
        try:
            return store.load("volumes", word)
        except FileNotFoundError:
            return None
    return None


# --- volumes --------------------------------------------------------------------------------------


@command("volume create")
def volume_create(store: Store, words: Words) -> int:
    """`docker volume create`."""
    options, rest = command_line.parse("volume create", command_line.VOLUME_CREATE, words)
    name = rest[0] if rest else options["name"]
    if not name:
        raise DockerError("docker: the mock makes volumes with a name only")
    container_create.make_volume(
        store, name, dict(word.partition("=")[::2] for word in options["label"])
    )
    say(name)
    return 0


@command("volume inspect")
def volume_inspect(store: Store, words: Words) -> int:
    """`docker volume inspect`."""
    options, rest = command_line.parse("volume inspect", command_line.FORMAT, words)
    need("volume inspect", rest, 1)
    for name in rest:
        record = look_up(store, name, ("volume",))
        if record is None:
            daemon_error(f"get {name}: no such volume")
        say(formatted(options["format"] or "{{json .}}", record))
    return 0


@command("volume ls", "volume list")
def volume_ls(store: Store, words: Words) -> int:
    """`docker volume ls`."""
    options, _ = command_line.parse("volume ls", command_line.PS, words)
    if not options["quiet"] and not options["format"]:
        say("DRIVER    VOLUME NAME")
    for record in store.all("volumes"):
        say(
            record["Name"]
            if options["quiet"]
            else formatted(options["format"] or "{{.Driver}}     {{.Name}}", record)
        )
    return 0


@command("volume rm", "volume remove")
def volume_rm(store: Store, words: Words) -> int:
    """`docker volume rm`."""
    options, rest = command_line.parse("volume rm", command_line.RMI, words)
    need("volume rm", rest, 1)
    for name in rest:
        user = next(
            (
                box
                for box in store.all("containers")
                if any(mount.get("Name") == name for mount in box["Mounts"])
            ),
            None,
        )
        if user is not None:
            daemon_error(f"remove {name}: volume is in use - [{user['Id']}]")
        if look_up(store, name, ("volume",)) is None and not options["force"]:
            daemon_error(f"get {name}: no such volume")
        store.drop("volumes", name)
        say(name)
    return 0


@command("_boot")
def boot(store: Store, words: Words) -> int:
    """Not Docker's: what the daemon does when the machine starts."""
    del words
    with store.lock():
        containers.boot(store)
    return 0
