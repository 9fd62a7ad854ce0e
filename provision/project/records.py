"""Records of the VMs that this project created: tasks on a VM need no request to reach it."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from provision.core.files import file_lock, write_atomically
from provision.core.model import Vm


@dataclass(frozen=True, kw_only=True)
class VmRecord:
    """Where a VM is and how tasks log in; `key_alias` is the name its host key is pinned under."""

    name: str
    zone: str
    address: str
    port: int
    user: str
    instance_id: str
    key_alias: str
    created: str = ""
    machine_type: str = ""
    gpu: str | None = None


def record_of(vm: Vm, user: str, port: int) -> VmRecord:
    """Return the record of a VM that is reached as `user` on `port`."""
    return VmRecord(
        name=vm.name,
        zone=vm.zone,
        address=address_of(vm),
        port=port,
        user=user,
        instance_id=vm.instance_id,
        key_alias=key_alias(vm.instance_id),
        created=vm.created,
        machine_type=vm.machine_type,
        gpu=vm.gpu,
    )


def address_of(vm: Vm) -> str:
    """Return the external address, else the one inside the network; empty when it has none."""
    return vm.address or vm.internal_address or ""


def key_alias(instance_id: str) -> str:
    """Return the name that a VM's host keys are pinned under.

    It is the instance id, since names and addresses are given to other machines later.
    """
    return f"compute.{instance_id}"


class VmRecords:
    """The records of one project, in one JSON file that is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> list[VmRecord]:
        """Return every record, by name; an unreadable file counts as empty."""
        try:
            rows = json.loads(self._path.read_text(encoding="utf-8"))
            return [VmRecord(**row) for row in rows]
        except (OSError, ValueError, TypeError):
            return []

    def get(self, name: str) -> VmRecord | None:
        """Return the record of that name, or None."""
        return next((record for record in self.all() if record.name == name), None)

    def put(self, record: VmRecord) -> None:
        """Add the record, or replace the one of its name."""
        with self._locked():
            self._write([*(other for other in self.all() if other.name != record.name), record])

    def remove(self, name: str) -> None:
        """Remove the record of that name, if there is one."""
        with self._locked():
            self._write([record for record in self.all() if record.name != name])

    def _locked(self) -> AbstractContextManager[None]:
        """Lock out other threads and processes: a change reads the whole file and replaces it."""
        return file_lock(self._path.with_suffix(".lock"))

    def _write(self, records: list[VmRecord]) -> None:
        rows = [asdict(record) for record in sorted(records, key=lambda record: record.name)]
        write_atomically(self._path, json.dumps(rows, indent=1))
