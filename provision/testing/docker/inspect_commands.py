"""docker inspect, in its three forms."""

from __future__ import annotations

from . import command_line
from .command_table import Words, apply_format, check_count, command
from .container_state import state_of
from .store import Record, Store, print_error, print_line


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
    check_count(name, rest, 1)
    found, missing = [], []
    for word in rest:
        record = find_record(store, word, (options["type"],) if options["type"] else kinds)
        if record is None:
            missing.append(word)
        elif options["format"]:
            print_line(apply_format(options["format"], record))
        else:
            found.append(record)
    if not options["format"]:
        import json

        print_line(json.dumps(found, indent=4))
    elif missing and not found and len(missing) == len(rest):
        print_line("")
    for word in missing:
        what = f"No such {kinds[0]}: {word}" if len(kinds) == 1 else f"No such object: {word}"
        print_error(f"Error response from daemon: {what}" if len(kinds) == 1 else f"Error: {what}")
    return 1 if missing else 0


def find_record(store: Store, word: str, kinds: tuple[str, ...]) -> Record | None:
    """The first record of that name among `kinds`, with a container's state updated; or None."""
    if "container" in kinds and (record := store.container(word)) is not None:
        state_of(store, record)
        return record
    if "image" in kinds and (record := store.image(word)) is not None:
        return record
    if "volume" in kinds:
        try:
            return store.load("volumes", word)
        except FileNotFoundError:
            return None
    return None
