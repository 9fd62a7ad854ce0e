"""What Compute Engine says about itself: which GPUs and machine types are where, quotas, images, networks. Read only.

Aggregated lists answer for all zones at once; machine types are filtered by name on the server,
since there are hundreds in each zone. `regions.list` carries every region's quotas (Compute Engine
API v1), so quotas cost two calls however many regions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.cloud.api import body
from provision.cloud.api.body import ImageRef, last
from provision.cloud.api.client import ComputeClient, as_json
from provision.cloud.market.catalog import MachineType
from provision.cloud.market.offers import Listed
from provision.cloud.market.quota import Quotas, by_metric

_PAGE = 500


def accelerators(client: ComputeClient) -> dict[str, frozenset[str]]:
    """Zone → the accelerator types that are offered there; zones with none are left out."""
    what = "the accelerator types could not be listed"
    words = {"max_results": _PAGE}
    rows = client.pages(
        "AcceleratorTypesClient",
        "aggregated_list",
        what,
        client.project,
        _accelerators_of_scope,
        **words,
    )
    found: dict[str, frozenset[str]] = {}
    for zone, names in rows:
        if names:
            found[zone] = found.get(zone, frozenset()) | names
    return found


def _accelerators_of_scope(scope: Any) -> tuple[str, frozenset[str]]:
    name, scoped = scope
    return last(name), frozenset(str(each.name) for each in scoped.accelerator_types)


def zones(client: ComputeClient) -> list[str]:
    """Every zone, by name."""
    found = client.pages(
        "ZonesClient",
        "list",
        "the zones could not be listed",
        client.project,
        lambda zone: str(zone.name),
    )
    return sorted(found)


def machines(client: ComputeClient, names: Iterable[str]) -> list[Listed]:
    """The machine types whose name matches one of `names` (RE2), in every zone; none for no names."""
    pattern = "|".join(names)
    if not pattern:
        return []
    what = "the machine types could not be listed"
    words = {"filter": f'name eq "({pattern})"', "max_results": _PAGE}
    scopes = client.pages(
        "MachineTypesClient", "aggregated_list", what, client.project, _machines_of_scope, **words
    )
    return [machine for scope in scopes for machine in scope]


def _machines_of_scope(scope: Any) -> list[Listed]:
    name, scoped = scope
    return [_machine(last(name), as_json(machine)) for machine in scoped.machine_types]


def _machine(zone: str, resource: Mapping[str, Any]) -> Listed:
    brings: Mapping[str, Any] = next(iter(resource.get("accelerators", ())), {})
    machine = MachineType(
        name=resource["name"],
        vcpus=int(resource.get("guestCpus", 0)),
        memory_gb=int(resource.get("memoryMb", 0)) / 1024,
        gpu_count=int(brings.get("guestAcceleratorCount", 0)),
    )
    return Listed(
        zone, machine, brings.get("guestAcceleratorType"), resource.get("architecture", "")
    )


def quotas(
    client: ComputeClient, regions: Sequence[str] | None = None, *, regional: bool = False
) -> Quotas:
    """The project's quotas and those of `regions` (None: of all); two calls. A region that there is not is left out.

    With `regional` the project's are not read: one call.
    """
    project = (
        {}
        if regional
        else client.read("ProjectsClient", "get", "the project could not be read", client.project)
    )
    wanted = None if regions is None else tuple(dict.fromkeys(regions))
    what = "the quotas could not be read"
    if wanted is not None and len(wanted) == 1:
        rows = [client.read("RegionsClient", "get", what, wanted[0], region=wanted[0])]
    else:
        rows = client.pages(
            "RegionsClient", "list", what, client.project, as_json, max_results=_PAGE
        )
    found = {
        row["name"]: by_metric(row.get("quotas", ()))
        for row in rows
        if wanted is None or row["name"] in wanted
    }
    return Quotas(by_metric(project.get("quotas", ())), found)


def image(client: ComputeClient, ref: ImageRef) -> dict[str, Any]:
    """The image resource: by name, or the newest of a family. Raises CloudNotFound, or AuthRefused where it may not be read."""
    if ref.is_family:
        words = {"project": ref.project, "family": ref.name}
        return client.read(
            "ImagesClient",
            "get_from_family",
            "the image family could not be read",
            f"{ref.project}/{ref.name}",
            **words,
        )
    return client.read(
        "ImagesClient",
        "get",
        "the image could not be read",
        f"{ref.project}/{ref.name}",
        project=ref.project,
        image=ref.name,
    )


def image_ref(image: str) -> ImageRef:
    """What the setting `image` names."""
    return body.image_ref(image)


def firewalls(client: ComputeClient) -> list[dict[str, Any]]:
    """Every firewall rule of the project."""
    return client.pages(
        "FirewallsClient",
        "list",
        "the firewall rules could not be listed",
        client.project,
        as_json,
        max_results=_PAGE,
    )


def network(client: ComputeClient, name: str) -> dict[str, Any]:
    """The network of this name. Raises CloudNotFound when there is none."""
    return client.read(
        "NetworksClient",
        "get",
        "the network could not be read",
        f"{client.project}/{name}",
        network=name,
    )
