"""Commands about volumes."""

from __future__ import annotations

from . import command_line, mounts
from .command_table import Words, apply_format, check_count, command
from .inspect_commands import find_record
from .store import DockerError, Store, daemon_error, print_line


@command("volume create")
def volume_create(store: Store, words: Words) -> int:
    """`docker volume create NAME`. Raises `DockerError` without a name."""
    options, rest = command_line.parse("volume create", command_line.VOLUME_CREATE, words)
    name = rest[0] if rest else options["name"]
    if not name:
        raise DockerError("docker: the mock makes volumes with a name only")
    mounts.make_volume(store, name, dict(word.partition("=")[::2] for word in options["label"]))
    print_line(name)
    return 0


@command("volume inspect")
def volume_inspect(store: Store, words: Words) -> int:
    """`docker volume inspect`."""
    options, rest = command_line.parse("volume inspect", command_line.FORMAT, words)
    check_count("volume inspect", rest, 1)
    for name in rest:
        record = find_record(store, name, ("volume",))
        if record is None:
            daemon_error(f"get {name}: no such volume")
        print_line(apply_format(options["format"] or "{{json .}}", record))
    return 0


@command("volume ls", "volume list")
def volume_ls(store: Store, words: Words) -> int:
    """`docker volume ls`."""
    options, _ = command_line.parse("volume ls", command_line.PS, words)
    if not options["quiet"] and not options["format"]:
        print_line("DRIVER    VOLUME NAME")
    for record in store.all("volumes"):
        print_line(
            record["Name"]
            if options["quiet"]
            else apply_format(options["format"] or "{{.Driver}}     {{.Name}}", record)
        )
    return 0


@command("volume rm", "volume remove")
def volume_rm(store: Store, words: Words) -> int:
    """`docker volume rm`."""
    options, rest = command_line.parse("volume rm", command_line.RMI, words)
    check_count("volume rm", rest, 1)
    for name in rest:
        user = next(
            (
                container
                for container in store.all("containers")
                if any(mount.get("Name") == name for mount in container["Mounts"])
            ),
            None,
        )
        if user is not None:
            daemon_error(f"remove {name}: volume is in use - [{user['Id']}]")
        if find_record(store, name, ("volume",)) is None and not options["force"]:
            daemon_error(f"get {name}: no such volume")
        store.drop("volumes", name)
        print_line(name)
    return 0
