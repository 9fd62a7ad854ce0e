"""The mounts of `--volume` and `--mount`, and named volumes."""

from __future__ import annotations

import os
import re
import time

from .store import Record, Store, daemon_error, new_id, now

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+\Z")


def parse_volume(store: Store, word: str) -> Record:
    """The mount of a `--volume` word. Raises `DockerError`."""
    parts = store.host_path(word).split(":")
    if len(parts) == 1:
        parts = [new_id(word, str(time.time_ns())), parts[0]]
    source, target, mode = parts[0], parts[1], (parts[2] if len(parts) > 2 else "")
    if not target.startswith("/"):
        daemon_error(
            f"invalid volume specification: '{word}': invalid mount config for type \"volume\": "
            f"invalid mount path: '{target}' mount path must be absolute",
            125,
        )
    return _mount_record(store, source, target, mode)


def parse_mount(store: Store, word: str) -> Record:
    """The mount of a `--mount` word. Raises `DockerError`."""
    values = dict(part.partition("=")[::2] for part in word.split(","))
    source = values.get("source", values.get("src", ""))
    target = values.get("target", values.get("dst", values.get("destination", "")))
    if values.get("type") == "bind" and not os.path.exists(store.real(source)):
        daemon_error(
            'invalid mount config for type "bind": bind source path does not exist: '
            f"{store.host_path(source)}",
            125,
        )
    return _mount_record(
        store,
        store.host_path(source),
        target,
        "ro" if "readonly" in values or "ro" in values else "",
    )


def _mount_record(store: Store, source: str, target: str, mode: str) -> Record:
    if source.startswith("/"):
        return {
            "Type": "bind",
            "Source": source,
            "Destination": target,
            "Mode": mode,
            "RW": "ro" not in mode.split(","),
        }
    make_volume(store, source, {})
    return {
        "Type": "volume",
        "Name": source,
        "Source": f"/var/lib/docker/volumes/{source}/_data",
        "Destination": target,
        "Mode": mode,
        "RW": "ro" not in mode.split(","),
    }


def make_volume(store: Store, name: str, labels: dict[str, str]) -> Record:
    """A named volume, created if necessary. Raises `DockerError` for an invalid name."""
    if not _NAME.match(name):
        daemon_error(
            f'create {name}: "{name}" includes invalid characters for a local volume name, '
            'only "[a-zA-Z0-9][a-zA-Z0-9_.-]" are allowed. '
            "If you intended to pass a host directory, use absolute path",
            125,
        )
    try:
        return store.load("volumes", name)
    except FileNotFoundError:
        record: Record = {
            "Name": name,
            "Driver": "local",
            "Created": now(),
            "CreatedAt": now(),
            "Labels": labels,
            "Mountpoint": f"/var/lib/docker/volumes/{name}/_data",
            "Scope": "local",
        }
        store.save("volumes", name, record)
        os.makedirs(store.folder("volumes", name) + "/_data", exist_ok=True)
        return record
