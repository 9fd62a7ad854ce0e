"""What the functions of the life cycle work with: the cloud, the journal, and how to report."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from provision.cloud.api.labels import OWNER_LABEL
from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle.journal import Journal
from provision.cloud.market.prices import PriceList, packaged_prices
from provision.cloud.refusal import CloudRefused, Refusal
from provision.core.errors import CleanupFailed, CloudError
from provision.core.model import Emit, Note, Vm


def new_request_id() -> str:
    """Return a new requestId; one per insert, kept over its retries."""
    return str(uuid.uuid4())


@dataclass(frozen=True, kw_only=True)
class CloudContext:
    """The cloud, the journal, where notes go, the price list, and injectable ids and sleep."""

    cloud: ComputeCloud
    journal: Journal
    emit: Emit
    prices: PriceList = field(default_factory=packaged_prices, repr=False)
    new_id: Callable[[], str] = new_request_id
    sleep: Callable[[float], None] = time.sleep

    def note(self, text: str) -> None:
        """Emit a line for people."""
        self.emit(Note(text))


def name_taken_error(vm: Vm) -> CloudRefused:
    """Return the error for a VM that has the name and another owner."""
    message = f"label {OWNER_LABEL} is {vm.labels.get(OWNER_LABEL)!r}"
    return CloudRefused(
        "a VM of this name exists and has another owner",
        refusal=Refusal(code="alreadyExists", message=message, http_status=409),
        where=f"{vm.zone}/{vm.name}",
        fix="choose another --name",
    )


def left_behind_error(what: str, name: str, zone: str, error: CloudError) -> CleanupFailed:
    """Return the error for a VM that may go on billing, with the command that deletes it."""
    return CleanupFailed(
        what,
        where=f"{zone}/{name}",
        why=error.why,
        fix=f"gcloud compute instances delete {name} --zone {zone}",
    )
