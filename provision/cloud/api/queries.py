"""Read-only requests about a project: GPUs, machine types, zones, quotas, images, networks.

Aggregated lists answer for all zones at once; machine types are filtered by name on the server,
since a zone has hundreds. `regions.list` contains every region's quotas (Compute Engine API v1),
so all quotas cost two requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.cloud.api.client import ComputeClient
from provision.cloud.api.google_library import as_json
from provision.cloud.api.images import ImageRef
from provision.cloud.api.resources import last_segment
from provision.cloud.market.catalog import MachineType, gpu_type
from provision.cloud.market.offers import ListedMachineType
from provision.cloud.market.quota import Quotas, quotas_by_metric

_PAGE = 500


def list_accelerators(client: ComputeClient) -> dict[str, frozenset[str]]:
    """Return zone → the accelerator types offered there; zones without any are left out."""
    scopes = client.pages(
        "AcceleratorTypesClient",
        "aggregated_list",
        "the accelerator types could not be listed",
        client.project,
        _accelerators_of_scope,
        max_results=_PAGE,
    )
    by_zone: dict[str, frozenset[str]] = {}
    for zone, names in scopes:
        if names:
            by_zone[zone] = by_zone.get(zone, frozenset()) | names
    return by_zone


def _accelerators_of_scope(scope: Any) -> tuple[str, frozenset[str]]:
    name, scoped = scope
    return last_segment(name), frozenset(str(row.name) for row in scoped.accelerator_types)


def list_zones_offering(client: ComputeClient, gpu: str) -> list[str]:
    """Return the zones that list the accelerator type of `gpu`, by name."""
    scopes = client.pages(
        "AcceleratorTypesClient",
        "aggregated_list",
        "the zones could not be listed",
        client.project,
        _accelerators_of_scope,
        filter=f'name="{gpu_type(gpu).accelerator}"',
        max_results=_PAGE,
    )
    return sorted(zone for zone, names in scopes if names)


def list_zones(client: ComputeClient) -> list[str]:
    """Return every zone, by name."""
    what = "the zones could not be listed"
    return sorted(
        client.pages("ZonesClient", "list", what, client.project, lambda zone: str(zone.name))
    )


def list_machine_types(client: ComputeClient, patterns: Iterable[str]) -> list[ListedMachineType]:
    """Return the machine types of every zone whose name matches a pattern (RE2)."""
    pattern = "|".join(patterns)
    if not pattern:
        return []
    scopes = client.pages(
        "MachineTypesClient",
        "aggregated_list",
        "the machine types could not be listed",
        client.project,
        _machine_types_of_scope,
        filter=f'name eq "({pattern})"',
        max_results=_PAGE,
    )
    return [machine for scope in scopes for machine in scope]


def _machine_types_of_scope(scope: Any) -> list[ListedMachineType]:
    name, scoped = scope
    zone = last_segment(name)
    return [_machine_type(zone, as_json(machine)) for machine in scoped.machine_types]


def _machine_type(zone: str, resource: Mapping[str, Any]) -> ListedMachineType:
    gpus: Mapping[str, Any] = next(iter(resource.get("accelerators", ())), {})
    machine = MachineType(
        name=resource["name"],
        vcpus=int(resource.get("guestCpus", 0)),
        memory_gb=int(resource.get("memoryMb", 0)) / 1024,
        gpu_count=int(gpus.get("guestAcceleratorCount", 0)),
    )
    gpu, arch = gpus.get("guestAcceleratorType"), resource.get("architecture", "")
    return ListedMachineType(zone, machine, gpu, arch)


def fetch_project(client: ComputeClient) -> dict[str, Any]:
    """Return the project resource."""
    return client.read("ProjectsClient", "get", "the project could not be read", client.project)


def fetch_quotas(
    client: ComputeClient, regions: Sequence[str] | None = None, *, regional: bool = False
) -> Quotas:
    """Return the quotas of the project and of `regions` (None: of all), with two requests.

    With `regional` those of the project are left out: one request. A region that does not exist is
    left out.
    """
    project = {} if regional else fetch_project(client)
    wanted = None if regions is None else tuple(dict.fromkeys(regions))
    what = "the quotas could not be read"
    if wanted is not None and len(wanted) == 1:
        rows = [client.read("RegionsClient", "get", what, wanted[0], region=wanted[0])]
    else:
        rows = client.pages(
            "RegionsClient", "list", what, client.project, as_json, max_results=_PAGE
        )
    by_region = {
        row["name"]: quotas_by_metric(row.get("quotas", ()))
        for row in rows
        if wanted is None or row["name"] in wanted
    }
    return Quotas(quotas_by_metric(project.get("quotas", ())), by_region)


def fetch_image(client: ComputeClient, ref: ImageRef) -> dict[str, Any]:
    """Return the image resource: by name, or the newest of a family.

    Raises `CloudNotFound`, or `AuthRefused` when the account may not read it.
    """
    if ref.is_family:
        method, what = "get_from_family", "the image family could not be read"
        fields = {"family": ref.name}
    else:
        method, what, fields = "get", "the image could not be read", {"image": ref.name}
    where = f"{ref.project}/{ref.name}"
    return client.read("ImagesClient", method, what, where, project=ref.project, **fields)


def list_firewall_rules(client: ComputeClient) -> list[dict[str, Any]]:
    """Return every firewall rule of the project."""
    what = "the firewall rules could not be listed"
    return client.pages("FirewallsClient", "list", what, client.project, as_json, max_results=_PAGE)


def fetch_network(client: ComputeClient, name: str) -> dict[str, Any]:
    """Return the network of this name. Raises `CloudNotFound` when there is none."""
    where = f"{client.project}/{name}"
    return client.read(
        "NetworksClient", "get", "the network could not be read", where, network=name
    )
