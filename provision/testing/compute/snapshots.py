"""The state of the emulated cloud as JSON, saved and restored. Not locked."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from provision.testing.compute import instance_resource
from provision.testing.compute.errors import Json
from provision.testing.compute.instance import OFF, WAITING, Instance
from provision.testing.compute.instance_resource import ResourceRef
from provision.testing.compute.store import Store


def snapshot(store: Store) -> Json:
    """Instances, disks, reservations, project metadata and OS Login's keys."""
    items = [
        [ref.project, ref.zone, ref.name, ref.collection, resource]
        for ref, resource in store.items.items()
    ]
    return {
        "instances": [instance.as_json() for instance in store.instances.values()],
        "items": deepcopy(items),
        "metadata": dict(store.project_metadata),
        "logins": store.logins.snapshot(),
    }


def restore(store: Store, saved: Mapping[str, Any]) -> None:
    """Restore what `snapshot` returned; instances that ran boot and keep their time limit."""
    store.project_metadata.update(saved["metadata"])
    store.logins.restore(saved.get("logins", {}))
    for *ref, resource in saved["items"]:
        store.items[ResourceRef(*ref)] = deepcopy(resource)
    for instance in map(Instance.from_json, saved["instances"]):
        store.instances[instance.ref] = instance
        store.count += 1
        if instance.status not in (*OFF, WAITING):
            stops_at = instance.stops_at
            store.boot(instance, keep=True)
            instance.stops_at = stops_at
            instance_resource.set_termination(instance.resource, stops_at)


def shut_down(store: Store, *, keep: bool) -> None:
    """End every host: destroy it, or with `keep` halt it on its disk. Forget all resources."""
    for instance in list(store.instances.values()):
        if not keep:
            store.remove(instance)
        elif instance.status not in OFF:
            store.power_off(instance)
    store.instances.clear()
    store.items.clear()
