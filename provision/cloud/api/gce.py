"""Compute Engine: instances made, read, changed and deleted, as values of ours."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from provision.cloud.api import body, live, oslogin
from provision.cloud.api.client import ComputeClient, as_json, message
from provision.cloud.api.ports import (
    MOCK_PORT_ATTRIBUTE,
    Disk,
    Ended,
    Listing,
    Login,
    SerialOutput,
    Silence,
)
from provision.cloud.market import catalog
from provision.cloud.market.placement import Kind, classify, refused
from provision.cloud.market.quota import Quotas
from provision.cloud.refusal import VANISHED, WAITED_IN_VAIN, CloudRefused, NotFoundRefused, Refusal
from provision.core.errors import CloudError, CloudNotFound
from provision.core.model import Vm, VmSpec

SSH_PORT = 22
HTTP_BAD_REQUEST = 400
HTTP_STALE = 412
"""What a change answers that carries the fingerprint of something that has changed since it was
read."""
LABEL_ATTEMPTS = 5
EMPTY_SCOPE = "NO_RESULTS_ON_PAGE"
"""The warning of a zone that holds nothing; any other says that something may be missing (Compute
Engine API, aggregatedList)."""


class GceCloud:
    """The `ComputeCloud` of one project. Its arguments are those of `ComputeClient`. Safe to use from several threads."""

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
        self._images: dict[body.ImageRef, str] = {}

    @property
    def project(self) -> str:
        """Who pays."""
        return self.client.project

    @property
    def endpoint(self) -> str | None:
        """Where the emulator listens; None for Google's."""
        return self.client.endpoint

    # --- the Cloud protocol -----------------------------------------------------------------------

    def create(self, spec: VmSpec, zone: str, *, request_id: str) -> Vm:
        """Insert the VM in `zone` and wait until it runs; one of the same name and owner that is there already is taken.

        A flex-start VM comes back as PENDING where it waits for capacity (`waiting.awaited`).
        """
        body.check_spec(spec)
        where = f"{zone}/{spec.name}"
        image = self.resolve_image(spec.image, spec.image_project)
        resource = body.insert_body(spec, zone, source_image=image.path)
        resource["labels"][body.IMAGE_LABEL] = body.label_value(image.name)
        try:
            what, waits_s = "the VM was not created", float(spec.request_valid_s or 0)
            words = {"instance_resource": message("Instance", resource)}
            self.client.mutate("insert", what, where, zone, request_id, extra_s=waits_s, **words)
        except CloudRefused as error:
            if classify(error.refusal).kind is not Kind.EXISTS:
                raise
            return self._adopt(spec, zone, error)
        vm = self.get(spec.name, zone)
        if vm is None and waits_s:  # its whole time passed while the answers were on their way
            refusal = Refusal(
                code=WAITED_IN_VAIN,
                message=f"no capacity within {waits_s:g} s: the cloud removed the request",
            )
            raise refused(what, refusal, where=where, project=self.project)
        return self._settled(vm or self._require(spec.name, zone))

    def get(self, name: str, zone: str) -> Vm | None:
        """The VM, or None when there is none of this name in `zone`."""
        try:
            found = self.client.read(
                "InstancesClient",
                "get",
                "the VM could not be read",
                f"{zone}/{name}",
                zone=zone,
                instance=name,
            )
        except CloudNotFound:
            return None
        return replace(body.vm_from_json(found), ahead_s=self.client.ahead_s or 0.0)

    def list(self, labels: Mapping[str, str]) -> Sequence[Vm]:
        """All VMs of the project that carry `labels`, over all zones, by zone and name; one call per 500."""
        return self.listing(labels).vms

    def delete(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the VM and wait until it is gone; False when there was none."""
        try:
            self.client.mutate(
                "delete",
                "the VM was not deleted",
                f"{zone}/{name}",
                zone,
                request_id,
                instance=name,
            )
        except CloudNotFound:
            return False
        return True

    # --- beyond it (ComputeCloud) -----------------------------------------------------------------

    def listing(self, labels: Mapping[str, str]) -> Listing:
        """What `list` finds, and the zones that are missing in it: such a reply is no error, it carries a warning for each."""
        what = "the VMs could not be listed"
        words = {"filter": body.labels_filter(labels), "max_results": 500}
        scopes = self.client.pages(
            "InstancesClient", "aggregated_list", what, self.project, _scope, **words
        )
        vms = sorted((vm for found, _ in scopes for vm in found), key=lambda vm: (vm.zone, vm.name))
        vms = [replace(vm, ahead_s=self.client.ahead_s or 0.0) for vm in vms]
        return Listing(
            vms, list(dict.fromkeys(silence for _, silence in scopes if silence is not None))
        )

    def start(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Start a stopped VM and wait until it runs. It is bound to its zone by its disk: without capacity there it stays stopped."""
        try:
            self.client.mutate(
                "start", "the VM was not started", f"{zone}/{name}", zone, request_id, instance=name
            )
        except CloudRefused as error:
            if classify(error.refusal).kind is Kind.CAPACITY:
                error.fix = (
                    f"invoke vm.start --name {name} later: it stays stopped with its disk in {zone}"
                    f"\nor invoke vm.delete --name {name} and vm.create, which asks other zones and begins with an empty disk"
                )
            raise
        return self._require(name, zone)

    def stop(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Stop the VM, keep its disk, and wait until it is stopped."""
        self.client.mutate(
            "stop", "the VM was not stopped", f"{zone}/{name}", zone, request_id, instance=name
        )
        return self._require(name, zone)

    def reset(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Reset the VM as its reset button would: no clean shutdown, the disk and the addresses stay."""
        self.client.mutate(
            "reset", "the VM was not reset", f"{zone}/{name}", zone, request_id, instance=name
        )
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
        """Put labels on the VM and take others away; the rest stays as it is.

        The request replaces all labels and carries the fingerprint of those that were read: when
        somebody else was faster (412) they are read again.
        """
        what, where = "the labels were not set", f"{zone}/{name}"
        for attempt in range(LABEL_ATTEMPTS):
            found = self.client.read(
                "InstancesClient", "get", what, where, zone=zone, instance=name
            )
            labels = {
                **{
                    key: value
                    for key, value in found.get("labels", {}).items()
                    if key not in remove
                },
                **put,
            }
            wanted = message(
                "InstancesSetLabelsRequest",
                {"labels": labels, "labelFingerprint": found.get("labelFingerprint", "")},
            )
            words = {"instance": name, "instances_set_labels_request_resource": wanted}
            try:
                self.client.mutate(
                    "set_labels", what, where, zone, _numbered(request_id, attempt), **words
                )
                break
            except CloudRefused as error:
                if error.refusal.http_status != HTTP_STALE or attempt == LABEL_ATTEMPTS - 1:
                    raise
        return self._require(name, zone)

    def set_ttl(self, name: str, zone: str, ttl_s: int, *, request_id: str) -> Vm:
        """Give the VM another time limit, counted from its start; everything else about its scheduling stays.

        The API takes this of a stopped VM only (instances.setScheduling): a running one is asked
        for once, since waiting stops none.
        """
        what, where = "the time to live was not changed", f"{zone}/{name}"
        found = self.client.read("InstancesClient", "get", what, where, zone=zone, instance=name)
        scheduling = message("Scheduling", body.limited(found.get("scheduling", {}), ttl_s))
        words = {"instance": name, "scheduling_resource": scheduling}
        attempts = 1 if found.get("status") == "RUNNING" else None
        self.client.mutate(
            "set_scheduling", what, where, zone, request_id, attempts=attempts, **words
        )
        return self._require(name, zone)

    def serial(self, name: str, zone: str, *, start: int = 0) -> SerialOutput:
        """What the VM printed on serial port 1 from byte `start` on."""
        words = {"zone": zone, "instance": name, "port": 1, "start": start}
        output = self.client.read(
            "InstancesClient",
            "get_serial_port_output",
            "the serial port could not be read",
            f"{zone}/{name}",
            **words,
        )
        lost = max(0, int(output.get("start", start)) - start)
        return SerialOutput(output.get("contents", ""), int(output.get("next", 0)), lost)

    def guest_attributes(self, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        """The guest attributes below `namespace` ("hostkeys/"), key → value; empty while the guest has published none."""
        what = "guest attributes could not be read"
        words = {"zone": zone, "instance": name, "query_path": namespace}
        try:
            found = self.client.read(
                "InstancesClient", "get_guest_attributes", what, f"{zone}/{name}", **words
            )
        except CloudNotFound as error:
            if "guest attribute" in error.why.lower():
                return {}
            raise
        return {
            item["key"]: item.get("value", "")
            for item in found.get("queryValue", {}).get("items", [])
        }

    def project_metadata(self) -> Mapping[str, str]:
        """Metadata of the project, which each of its instances sees under its own."""
        found = self.client.read(
            "ProjectsClient", "get", "the project could not be read", self.project
        )
        return {
            item["key"]: item.get("value", "")
            for item in found.get("commonInstanceMetadata", {}).get("items", ())
        }

    def os_login(self, public_key: str, expires_s: int) -> Login:
        """Let whoever the credentials belong to log in with the key where OS Login is on, until `expires_s` (since the epoch).

        A key that is there already keeps its end when it is imported again: that is changed, as
        gcloud does.
        """
        account = self.client.account()
        profile = self.client.import_ssh_key(account, public_key, expires_s)
        name, ends_s = oslogin.held(profile, public_key)
        if name and ends_s != expires_s:
            self.client.extend_ssh_key(name, public_key, expires_s)
        return Login(
            account=account, user=oslogin.username(profile, account), key=name, expires_s=expires_s
        )

    def os_logout(self, key: str) -> bool:
        """Take a key out of its login profile; False when it was not there."""
        try:
            self.client.delete_ssh_key(key)
        except CloudNotFound:
            return False
        return True

    def ssh_port(self, vm: Vm) -> int:
        """22, or where a mock host listens: the emulator publishes that as a guest attribute."""
        if self.endpoint is None:
            return SSH_PORT
        namespace, key = MOCK_PORT_ATTRIBUTE.split("/")
        return int(self.guest_attributes(vm.name, vm.zone, f"{namespace}/").get(key, SSH_PORT))

    def resolve_image(self, image: str, project: str = "") -> body.ImageRef:
        """The image by name: a family is looked up once, so that what is made can be made again."""
        ref = body.image_ref(image, project)
        if not ref.is_family:
            return ref
        if ref not in self._images:
            what = "the image family could not be read"
            words = {"project": ref.project, "family": ref.name}
            self._images[ref] = self.client.read(
                "ImagesClient", "get_from_family", what, f"{ref.project}/{ref.name}", **words
            )["name"]
        return body.ImageRef(ref.project, self._images[ref], False)

    def clock(self) -> datetime:
        """The cloud's own time, as its latest reply tells it. Raises CloudError while none has."""
        if self.client.ahead_s is None:
            raise CloudError(
                "the cloud's time is not known",
                where=self.project,
                why="no reply had a Date that can be read",
            )
        return datetime.now(UTC) + timedelta(seconds=self.client.ahead_s)

    def quotas(self, regions: Sequence[str], *, regional: bool = False) -> Quotas:
        """The quotas of the project and of `regions`, two calls; with `regional` those of the regions alone, one call."""
        return live.quotas(self.client, regions, regional=regional)

    def zones_offering(self, gpu: str | None) -> Sequence[str]:
        """The zones that list the accelerator type, by name; every zone for None."""
        if gpu is None:
            return live.zones(self.client)
        what = "the zones could not be listed"
        words = {"filter": f'name="{catalog.gpu_type(gpu).accelerator}"', "max_results": 500}
        scopes = self.client.pages(
            "AcceleratorTypesClient",
            "aggregated_list",
            what,
            self.project,
            _zone_with_types,
            **words,
        )
        return sorted(zone for zone in scopes if zone)

    def ended(self, zone: str, request_id: str) -> Ended | None:
        """How the operation that `request_id` began in `zone` ended, once it has; None when it began none.

        An operation names the requestId it came with as its `clientOperationId` (Compute Engine
        API, zoneOperations).
        """
        what, where = "the operation could not be looked up", f"{zone}/{request_id}"
        for operation in self._operations_of(zone, request_id, what, where):
            try:
                self.client.finish(operation, zone, what, where)
            except CloudRefused as error:
                if not error.refusal.final:
                    raise
                return Ended(error)
            return Ended()
        return None

    def _operations_of(
        self, zone: str, request_id: str, what: str, where: str
    ) -> Sequence[Mapping[str, Any]]:
        """The operations that carry the requestId; should the API not filter by it (400), all of the zone are looked through."""
        words = {"zone": zone, "max_results": 500}
        try:
            chosen = {**words, "filter": f'clientOperationId="{request_id}"'}
            found = self.client.pages(
                "ZoneOperationsClient", "list", what, where, as_json, **chosen
            )
        except CloudRefused as error:
            if error.refusal.http_status != HTTP_BAD_REQUEST:
                raise
            found = self.client.pages("ZoneOperationsClient", "list", what, where, as_json, **words)
        return [
            operation for operation in found if operation.get("clientOperationId") == request_id
        ]

    def disks(self, labels: Mapping[str, str]) -> Sequence[Disk]:
        """All disks of the project that carry `labels`, over all zones, by zone and name."""
        words = {"filter": body.labels_filter(labels), "max_results": 500}
        what = "the disks could not be listed"
        scopes = self.client.pages(
            "DisksClient", "aggregated_list", what, self.project, _disks_of_scope, **words
        )
        return sorted(
            (disk for disks in scopes for disk in disks), key=lambda disk: (disk.zone, disk.name)
        )

    def delete_disk(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the disk and wait until it is gone; False when there was none."""
        try:
            where = f"{zone}/{name}"
            self.client.mutate(
                "delete",
                "the disk was not deleted",
                where,
                zone,
                request_id,
                client="DisksClient",
                disk=name,
            )
        except CloudNotFound:
            return False
        return True

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self.client.close()

    # --- helpers ----------------------------------------------------------------------------------

    def _adopt(self, spec: VmSpec, zone: str, error: CloudRefused) -> Vm:
        """The VM that holds the name, if it is ours (a repeated insert of a lost answer ends here too)."""
        vm = self.get(spec.name, zone)
        owner = spec.labels.get(body.OWNER_LABEL)
        if vm is None:
            raise error
        if owner is None or vm.labels.get(body.OWNER_LABEL) != owner:
            what = "a VM of this name exists and is not ours"
            raise CloudRefused(
                what,
                refusal=error.refusal,
                where=f"{zone}/{spec.name}",
                fix="choose another --name",
            ) from error
        return self._settled(vm)

    def _settled(self, vm: Vm) -> Vm:
        """The VM once its creation is over; what another insert has begun is waited for. What waits for capacity stays as it is."""
        deadline = self.client.now() + self.client.operation_timeout_s
        while vm.status in ("PROVISIONING", "STAGING") and self.client.now() < deadline:
            self.client.sleep(1.0)
            vm = self._require(vm.name, vm.zone)
        return vm

    def _require(self, name: str, zone: str) -> Vm:
        vm = self.get(name, zone)
        if vm is None:
            refusal = Refusal(code=VANISHED, message="it was there a moment ago")
            raise NotFoundRefused(
                "the VM is gone", refusal=refusal, where=f"{zone}/{name}", fix="invoke vm.list"
            )
        return vm


def _numbered(request_id: str, attempt: int) -> str:
    """A requestId for each attempt that says something else: under one id the API answers the first again."""
    return str(uuid.uuid5(uuid.UUID(request_id), str(attempt))) if attempt else request_id


def _zone_with_types(scope: Any) -> str:
    name, scoped = scope
    return body.last(name) if scoped.accelerator_types else ""


def _disks_of_scope(scope: Any) -> list[Disk]:
    _name, scoped = scope
    return [body.disk_from_json(as_json(disk)) for disk in scoped.disks]


def _scope(scope: Any) -> tuple[list[Vm], Silence | None]:
    name, scoped = scope
    warning = scoped.warning
    silence = (
        None
        if warning.code in ("", EMPTY_SCOPE)
        else Silence(body.last(name), f"{warning.code}: {warning.message}")
    )
    return [body.vm_from_json(as_json(instance)) for instance in scoped.instances], silence
