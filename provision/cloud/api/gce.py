"""Compute Engine: the `ComputeCloud` that sends requests, with VMs as values of this package."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from provision.cloud.api import disks, guest, operations, oslogin_client, queries
from provision.cloud.api.client import ComputeClient
from provision.cloud.api.google_library import as_json, message
from provision.cloud.api.images import ImageRef, image_ref
from provision.cloud.api.labels import IMAGE_LABEL, OWNER_LABEL, label_value, labels_filter
from provision.cloud.api.protocol import (
    MOCK_PORT_ATTRIBUTE,
    Disk,
    Listing,
    Login,
    OperationResult,
    SerialOutput,
    ZoneFailure,
)
from provision.cloud.api.request_bodies import check_spec, insert_body, scheduling_with_limit
from provision.cloud.api.resources import items_to_dict, last_segment, vm_from_json
from provision.cloud.market.quota import Quotas
from provision.cloud.refusal import (
    CAPACITY_WAIT_EXPIRED,
    VANISHED,
    CloudRefused,
    NotFoundRefused,
    Refusal,
)
from provision.cloud.refusal_table import RefusalKind, classify, refusal_error
from provision.core.errors import CloudError, CloudNotFound
from provision.core.model import Vm, VmSpec

SSH_PORT = 22
HTTP_STALE = 412
"""Status of a change whose fingerprint is that of a value which has changed since it was read."""
LABEL_ATTEMPTS = 5
EMPTY_SCOPE = "NO_RESULTS_ON_PAGE"
"""Warning of a zone without VMs; any other warning means that VMs may be missing (Compute Engine
API, aggregatedList)."""


class GceCloud:
    """The `ComputeCloud` of one project, with the arguments of `ComputeClient`.

    Safe to use from several threads.
    """

    def __init__(
        self,
        project: str,
        endpoint: str | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **limits: Any,
    ) -> None:
        self.client = ComputeClient(project, endpoint, now=now, sleep=sleep, **limits)
        self._images: dict[ImageRef, str] = {}

    @property
    def project(self) -> str:
        """The Google Cloud project, which pays."""
        return self.client.project

    @property
    def endpoint(self) -> str | None:
        """The URL of the emulator; None for Google's."""
        return self.client.endpoint

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self.client.close()

    # --- VMs: made, read, deleted -----------------------------------------------------------------

    def create(self, spec: VmSpec, zone: str, *, request_id: str) -> Vm:
        """Insert the VM and wait until it runs; return one of the same name and owner if it exists.

        A flex-start VM is returned as PENDING while it waits for capacity. Raises `CloudRefused`
        when the insert is refused, and `CloudError` for other failures.
        """
        check_spec(spec)
        where = f"{zone}/{spec.name}"
        image = self.resolve_image(spec.image, spec.image_project)
        resource = insert_body(spec, zone, source_image=image.path)
        resource["labels"][IMAGE_LABEL] = label_value(image.name)
        what, capacity_wait_s = "the VM was not created", float(spec.request_valid_s or 0)
        try:
            self.client.mutate(
                "insert",
                what,
                where,
                zone,
                request_id,
                extra_s=capacity_wait_s,
                instance_resource=message("Instance", resource),
            )
        except CloudRefused as error:
            if classify(error.refusal).kind is not RefusalKind.EXISTS:
                raise
            return self._existing(spec, zone, error)
        vm = self.get(spec.name, zone)
        if vm is None and capacity_wait_s:  # the wait ended while the replies were on their way
            why = f"no capacity within {capacity_wait_s:g} s: the cloud removed the request"
            refusal = Refusal(code=CAPACITY_WAIT_EXPIRED, message=why)
            raise refusal_error(what, refusal, where=where, project=self.project)
        return self._wait_while_starting(vm or self._require(spec.name, zone))

    def get(self, name: str, zone: str) -> Vm | None:
        """Return the VM, or None when `zone` has none of this name."""
        try:
            resource = self._read_instance("the VM could not be read", name, zone)
        except CloudNotFound:
            return None
        return replace(vm_from_json(resource), ahead_s=self.client.ahead_s or 0.0)

    def list(self, labels: Mapping[str, str]) -> Sequence[Vm]:
        """Return all VMs of the project that carry `labels`, by zone and name."""
        return self.list_with_failures(labels).vms

    def list_with_failures(self, labels: Mapping[str, str]) -> Listing:
        """Return what `list` returns, and the zones that could not be listed; a request per 500.

        A reply without the VMs of a zone is not an error: it has a warning for the zone.
        """
        scopes = self.client.pages(
            "InstancesClient",
            "aggregated_list",
            "the VMs could not be listed",
            self.project,
            _vms_of_scope,
            filter=labels_filter(labels),
            max_results=500,
        )
        ahead_s = self.client.ahead_s or 0.0
        vms = [replace(vm, ahead_s=ahead_s) for zone_vms, _ in scopes for vm in zone_vms]
        failures = [failure for _, failure in scopes if failure is not None]
        return Listing(sorted(vms, key=lambda vm: (vm.zone, vm.name)), [*dict.fromkeys(failures)])

    def delete(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the VM and wait until it is gone; False when there was none."""
        try:
            self._change("delete", "the VM was not deleted", name, zone, request_id)
        except CloudNotFound:
            return False
        return True

    def resolve_image(self, image: str, project: str = "") -> ImageRef:
        """Return the image by name; a family is looked up once, so that all VMs get one image."""
        ref = image_ref(image, project)
        if not ref.is_family:
            return ref
        if ref not in self._images:
            self._images[ref] = queries.fetch_image(self.client, ref)["name"]
        return ImageRef(ref.project, self._images[ref], False)

    # --- VMs: changed -----------------------------------------------------------------------------

    def start(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Start a stopped VM and wait until it runs.

        Its disk binds it to its zone: without capacity there it stays stopped. Raises
        `CloudRefused`, with what to do about missing capacity, and `CloudError`.
        """
        try:
            self._change("start", "the VM was not started", name, zone, request_id)
        except CloudRefused as error:
            if classify(error.refusal).kind is RefusalKind.CAPACITY:
                error.fix = (
                    f"invoke vm.start --name {name} later: "
                    f"it stays stopped with its disk in {zone}\n"
                    f"or invoke vm.delete --name {name} and vm.create, "
                    "which asks other zones and begins with an empty disk"
                )
            raise
        return self._require(name, zone)

    def stop(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Stop the VM, keep its disk, and wait until it is stopped."""
        self._change("stop", "the VM was not stopped", name, zone, request_id)
        return self._require(name, zone)

    def reset(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Reset the VM without a clean shutdown; its disk and its addresses stay."""
        self._change("reset", "the VM was not reset", name, zone, request_id)
        return self._require(name, zone)

    def set_labels(
        self,
        name: str,
        zone: str,
        put: Mapping[str, str],
        remove: Collection[str] = (),
        *,
        request_id: str,
    ) -> Vm:
        """Add or change the labels `put` and remove others; the rest stays.

        The request replaces all labels and carries the fingerprint of those that were read; after
        a change by another client (412) they are read again. Raises `CloudRefused` when it is
        refused, also for the last of `LABEL_ATTEMPTS` changes, and `CloudError`.
        """
        for attempt in range(LABEL_ATTEMPTS):
            try:
                self._replace_labels(name, zone, put, remove, _attempt_id(request_id, attempt))
                break
            except CloudRefused as error:
                if error.refusal.http_status != HTTP_STALE or attempt == LABEL_ATTEMPTS - 1:
                    raise
        return self._require(name, zone)

    def _replace_labels(
        self,
        name: str,
        zone: str,
        put: Mapping[str, str],
        remove: Collection[str],
        request_id: str,
    ) -> None:
        what = "the labels were not set"
        instance = self._read_instance(what, name, zone)
        kept = {
            key: value for key, value in instance.get("labels", {}).items() if key not in remove
        }
        wanted = {
            "labels": {**kept, **put},
            "labelFingerprint": instance.get("labelFingerprint", ""),
        }
        resource = message("InstancesSetLabelsRequest", wanted)
        fields = {"instances_set_labels_request_resource": resource}
        self._change("set_labels", what, name, zone, request_id, **fields)

    def set_ttl(self, name: str, zone: str, ttl_s: int, *, request_id: str) -> Vm:
        """Set the VM's time limit, in seconds from its start; its other scheduling stays.

        The API changes it on a stopped VM only (instances.setScheduling). A running one is asked
        for once, since a retry does not stop it.
        """
        what = "the time to live was not changed"
        instance = self._read_instance(what, name, zone)
        scheduling = scheduling_with_limit(instance.get("scheduling", {}), ttl_s)
        self._change(
            "set_scheduling",
            what,
            name,
            zone,
            request_id,
            attempts=1 if instance.get("status") == "RUNNING" else None,
            scheduling_resource=message("Scheduling", scheduling),
        )
        return self._require(name, zone)

    # --- what a guest reports, and how it is logged in to -----------------------------------------

    def serial_output(self, name: str, zone: str, *, start: int = 0) -> SerialOutput:
        """Return the output of serial port 1 from byte `start` on."""
        return guest.serial_output(self.client, name, zone, start=start)

    def guest_attributes(self, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        """Return the guest attributes below `namespace` ("hostkeys/"); empty without any."""
        return guest.guest_attributes(self.client, name, zone, namespace)

    def ssh_port(self, vm: Vm) -> int:
        """Return 22, or a mock host's port, which the emulator publishes as a guest attribute."""
        if self.endpoint is None:
            return SSH_PORT
        namespace, key = MOCK_PORT_ATTRIBUTE.split("/")
        return int(self.guest_attributes(vm.name, vm.zone, f"{namespace}/").get(key, SSH_PORT))

    def add_login_key(self, public_key: str, expires_s: int) -> Login:
        """Add a key to the login profile of the credentials' account, until `expires_s` (epoch)."""
        return oslogin_client.add_login_key(self.client, public_key, expires_s)

    def remove_login_key(self, key: str) -> bool:
        """Remove a key, by its name, from its login profile; False when it was not there."""
        try:
            oslogin_client.delete_key(self.client, key)
        except CloudNotFound:
            return False
        return True

    # --- the project ------------------------------------------------------------------------------

    def project_metadata(self) -> Mapping[str, str]:
        """Return the project's metadata, which applies to an instance that has none of its own."""
        project = queries.fetch_project(self.client)
        return items_to_dict(project.get("commonInstanceMetadata", {}))

    def current_time(self) -> datetime:
        """Return the cloud's time by its latest reply. Raises `CloudError` before the first."""
        if self.client.ahead_s is None:
            raise CloudError(
                "the cloud's time is not known",
                where=self.project,
                why="no reply had a Date that can be read",
            )
        return datetime.now(UTC) + timedelta(seconds=self.client.ahead_s)

    def quotas(self, regions: Sequence[str], *, regional: bool = False) -> Quotas:
        """Return the quotas of the project and `regions`; with `regional`, of the latter only."""
        return queries.fetch_quotas(self.client, regions, regional=regional)

    def zones_offering(self, gpu: str | None) -> Sequence[str]:
        """Return the zones that list the accelerator type, by name; every zone for None."""
        if gpu is None:
            return queries.list_zones(self.client)
        return queries.list_zones_offering(self.client, gpu)

    def operation_result(self, zone: str, request_id: str) -> OperationResult | None:
        """Wait for the operation that `request_id` began in `zone`; None when it began none."""
        return operations.operation_result(self.client, zone, request_id)

    def list_disks(self, labels: Mapping[str, str]) -> Sequence[Disk]:
        """Return all disks of the project that carry `labels`, by zone and name."""
        return disks.list_disks(self.client, labels)

    def delete_disk(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the disk and wait until it is gone; False when there was none."""
        return disks.delete_disk(self.client, name, zone, request_id=request_id)

    # --- helpers ----------------------------------------------------------------------------------

    def _change(
        self, method: str, what: str, name: str, zone: str, request_id: str, **fields: Any
    ) -> None:
        where = f"{zone}/{name}"
        self.client.mutate(method, what, where, zone, request_id, instance=name, **fields)

    def _read_instance(self, what: str, name: str, zone: str) -> dict[str, Any]:
        where = f"{zone}/{name}"
        return self.client.read("InstancesClient", "get", what, where, zone=zone, instance=name)

    def _existing(self, spec: VmSpec, zone: str, error: CloudRefused) -> Vm:
        """Return the VM that has the name, if it has the owner too.

        A repeated insert whose first reply was lost ends here as well. Raises `CloudRefused` for a
        VM of another owner.
        """
        vm = self.get(spec.name, zone)
        owner = spec.labels.get(OWNER_LABEL)
        if vm is None:
            raise error
        if owner is None or vm.labels.get(OWNER_LABEL) != owner:
            raise CloudRefused(
                "a VM of this name exists and has another owner",
                refusal=error.refusal,
                where=f"{zone}/{spec.name}",
                fix="choose another --name",
            ) from error
        return self._wait_while_starting(vm)

    def _wait_while_starting(self, vm: Vm) -> Vm:
        """Return the VM once it has left PROVISIONING and STAGING; PENDING is not waited for."""
        deadline = self.client.now() + self.client.operation_timeout_s
        while vm.status in ("PROVISIONING", "STAGING") and self.client.now() < deadline:
            self.client.sleep(1.0)
            vm = self._require(vm.name, vm.zone)
        return vm

    def _require(self, name: str, zone: str) -> Vm:
        vm = self.get(name, zone)
        if vm is None:
            raise NotFoundRefused(
                "the VM is gone",
                refusal=Refusal(code=VANISHED, message="it was there a moment ago"),
                where=f"{zone}/{name}",
                fix="invoke vm.list",
            )
        return vm


def _attempt_id(request_id: str, attempt: int) -> str:
    """Return a requestId for each attempt, whose body differs: an id stands for one request."""
    return str(uuid.uuid5(uuid.UUID(request_id), str(attempt))) if attempt else request_id


def _vms_of_scope(scope: Any) -> tuple[list[Vm], ZoneFailure | None]:
    name, scoped = scope
    vms = [vm_from_json(as_json(instance)) for instance in scoped.instances]
    warning = scoped.warning
    if warning.code in ("", EMPTY_SCOPE):
        return vms, None
    return vms, ZoneFailure(last_segment(name), f"{warning.code}: {warning.message}")
