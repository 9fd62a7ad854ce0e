"""What making and removing VMs needs, and the words for what may stay behind."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from provision.cloud.api import body
from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.journal import Journal
from provision.cloud.refusal import CloudRefused, Refusal
from provision.core.errors import CleanupFailed, CloudError
from provision.core.model import Emit, Note, Vm

HALTED = frozenset({"TERMINATED", "STOPPED"})
"""Status words of a VM that does not run and can be started (Compute Engine, "Instance life
cycle")."""


def new_request_id() -> str:
    """A fresh idempotency key; one per insert, kept over its retries."""
    return str(uuid.uuid4())


@dataclass(frozen=True, kw_only=True)
class Means:
    """The cloud, the journal, somebody to tell, a source of request ids, and a way to wait."""

    cloud: ComputeCloud
    journal: Journal
    emit: Emit
    new_id: Callable[[], str] = new_request_id
    sleep: Callable[[float], None] = time.sleep

    def note(self, text: str) -> None:
        """Tell people a line."""
        self.emit(Note(text))


def is_ours(vm: Vm, owner: str) -> bool:
    """It carries our owner label."""
    return vm.labels.get(body.OWNER_LABEL) == owner


def foreign(vm: Vm) -> CloudRefused:
    """The error for a VM that has the name and is not ours; it is never touched."""
    message = f"label {body.OWNER_LABEL} is {vm.labels.get(body.OWNER_LABEL)!r}"
    refusal = Refusal(code="alreadyExists", message=message, http_status=409)
    return CloudRefused(
        "a VM of this name exists and is not ours",
        refusal=refusal,
        where=f"{vm.zone}/{vm.name}",
        fix="choose another --name",
    )


def left_behind(what: str, name: str, zone: str, error: CloudError) -> CleanupFailed:
    """The error for a VM that may go on billing; it names the VM and how it is removed by hand."""
    return CleanupFailed(
        what,
        where=f"{zone}/{name}",
        why=error.why,
        fix=f"gcloud compute instances delete {name} --zone {zone}",
    )
