"""What a project, its network and an image must be for the VM of the settings, judged from what the API says of them. Pure.

Sources: Compute Engine API v1 (`firewalls`, `images`); Container-Optimized OS, "Run GPU workloads"
(milestones; Arm and dev images take no driver) and its release notes; Google Cloud, "Use IAP for
TCP forwarding" (where tunnels come from).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.cloud.api import oslogin
from provision.cloud.api.body import last
from provision.cloud.market import catalog
from provision.cloud.market.catalog import Shape
from provision.cloud.market.placement import itinerary, region_of
from provision.cloud.market.quota import Quotas, Room, alike, ask_for_more, beside, judge
from provision.core.model import VmSpec
from provision.report.checks import Check, Verdict

SSH_PORT = 22
ANYWHERE = "0.0.0.0/0"
_MILESTONE = re.compile(r"cos-(?:[a-z]+(?:64)?-)*(\d+)(?:-|\Z)")
_LTS_EVERY = 4
"""LTS milestones come every four: 117, 121, 125, 129 (Container-Optimized OS, release notes)."""
_ZONES_NAMED = 6
_RETIRED = ("OBSOLETE", "DELETED")


# --- zones ----------------------------------------------------------------------------------------


def zone_check(
    shape: Shape,
    places: Sequence[str],
    with_gpu: Sequence[str],
    with_machine: Iterable[str],
    *,
    known: Sequence[str] = (),
) -> tuple[Check, tuple[str, ...]]:
    """Whether the places of the settings offer GPU and machine type, and the zones that do, in the order of asking.

    `known` are all zones that there are: a place that is none of them is misspelt. Without it
    nothing is said of that.
    """
    plan = itinerary(places, with_gpu)
    listed = frozenset(with_machine)
    fitting = tuple(zone for zone in plan.zones if zone in listed)
    unknown = itinerary(places, known).lacking if known else ()
    lacking = [
        f"there is no zone or region {place}"
        if place in unknown
        else f"{place} does not list {shape.gpu or 'itself'}"
        for place in plan.lacking
    ]
    lacking += [
        f"{zone} does not list {shape.machine_type}" for zone in plan.zones if zone not in listed
    ]
    near = _nearest([zone for zone in with_gpu if zone in listed], places)
    more = (
        f" and {len(near) - _ZONES_NAMED} more (invoke vm.offers)"
        if len(near) > _ZONES_NAMED
        else ""
    )
    fix = f"set provision.zones to some of: {', '.join(near[:_ZONES_NAMED]) or 'none at present'}{more}"
    if not fitting:
        return Check(
            "zones",
            Verdict.FAIL,
            f"no zone of the settings offers {shape}",
            "; ".join(lacking),
            fix,
        ), ()
    what = f"{shape} is offered in {', '.join(fitting)}; that there is capacity is not known before it is asked for"
    return Check(
        "zones",
        Verdict.WARN if lacking else Verdict.OK,
        what,
        "; ".join(lacking),
        fix if lacking else "",
    ), fitting


def _nearest(zones: Iterable[str], places: Sequence[str]) -> list[str]:
    """The zones, first those of the regions that `places` name, then those of their continents, then the others."""
    regions = {name for place in places for name in (place, region_of(place))}
    continents = {place.partition("-")[0] for place in places}
    return sorted(
        zones,
        key=lambda zone: (
            region_of(zone) not in regions,
            zone.partition("-")[0] not in continents,
            zone,
        ),
    )


# --- what the project brings ----------------------------------------------------------------------


def service_account_check(project: Mapping[str, Any]) -> Check:
    """Whether there is the account that VMs run as: the project's default one, which may have been deleted (`projects`)."""
    name = str(project.get("defaultServiceAccount", ""))
    if name:
        return Check("service-account", Verdict.OK, f"VMs run as {name}")
    what, why = (
        "the project has no default service account",
        "VMs run as it: it reads driver and images for them",
    )
    return Check(
        "service-account",
        Verdict.FAIL,
        what,
        why,
        f"gcloud iam service-accounts list --project {project.get('name', '')}",
    )


def os_login_check(project: Mapping[str, Any], setting: str) -> Check:
    """How keys reach the VM: in its metadata, or through OS Login, for which a role is needed that cannot be read here."""
    items = project.get("commonInstanceMetadata", {}).get("items", ())
    is_on = oslogin.is_on({item["key"]: item.get("value", "") for item in items})
    name = str(project.get("name", ""))
    if setting == "on" or (setting == "auto" and is_on):
        what = (
            f"OS Login is on: that your account has {oslogin.LOGIN_ROLE} is seen at the first login"
        )
        fix = f"gcloud projects add-iam-policy-binding {name} --member user:YOU --role {oslogin.LOGIN_ROLE}"
        return Check(
            "os-login",
            Verdict.UNKNOWN,
            what,
            "owners have it; roles cannot be read with the Compute Engine API",
            fix,
        )
    if is_on:
        what, why = (
            "the project asks for OS Login, the settings turn it off",
            "a policy of the organisation may refuse such a VM",
        )
        return Check("os-login", Verdict.WARN, what, why, "set provision.os_login: auto")
    return Check(
        "os-login",
        Verdict.OK,
        "OS Login is not asked for: the project's key goes into the VM's metadata",
    )


# --- quotas ---------------------------------------------------------------------------------------


def quota_checks(quotas: Quotas, spec: VmSpec, zones: Sequence[str], project: str) -> list[Check]:
    """One for each region of `zones`, and one for all of those that cannot be told.

    Short is a warning while another region has room, since placement passes over it.
    """
    shape, model, more = Shape.of(spec), spec.provisioning_model, beside(spec)
    verdicts = {
        region: judge(quotas, shape, region, provisioning=model, more=more)
        for region in dict.fromkeys(map(region_of, zones))
    }
    rooms = {region: {verdict.room for verdict in found} for region, found in verdicts.items()}
    short = [region for region in verdicts if Room.SHORT in rooms[region]]
    unknown = [
        region for region in verdicts if Room.UNKNOWN in rooms[region] and region not in short
    ]
    checks = []
    for region, found in verdicts.items():
        if region in short:
            lacks = "; ".join(str(verdict) for verdict in found if verdict.room is Room.SHORT)
            status = Verdict.FAIL if len(short) == len(verdicts) else Verdict.WARN
            checks.append(
                Check(
                    f"quota-{region}",
                    status,
                    f"no room for {shape} in {region}",
                    lacks,
                    ask_for_more(project),
                )
            )
        elif region not in unknown:
            left = ", ".join(
                f"{verdict.metric} {verdict.quota.left:g}" for verdict in found if verdict.quota
            )
            checks.append(
                Check(f"quota-{region}", Verdict.OK, f"room for {shape}; left are {left}")
            )
    if unknown:
        what = f"whether {', '.join(unknown)} {'has' if len(unknown) == 1 else 'have'} room for {shape} cannot be told"
        why = "; ".join(
            alike(
                verdict
                for region in unknown
                for verdict in verdicts[region]
                if verdict.room is Room.UNKNOWN
            )
        )
        name = f"quota-{unknown[0]}" if len(unknown) == 1 else "quota"
        checks.append(Check(name, Verdict.UNKNOWN, what, why, ask_for_more(project)))
    return checks


# --- the image ------------------------------------------------------------------------------------


def milestone(image: str) -> int | None:
    """The milestone in the name of a COS image or family: 125 of `cos-125-lts`, `cos-stable-129-19506-448-36`; None for none."""
    found = _MILESTONE.match(image)
    return int(found[1]) if found else None


def image_check(resource: Mapping[str, Any], shape: Shape) -> Check:
    """Whether the image can drive the GPU: alive, x86, not of the dev channel, of a milestone that supports the type."""
    name = str(resource["name"])
    state = str(resource.get("deprecated", {}).get("state", "ACTIVE"))
    number = milestone(name)

    def failed(what: str, why: str, fix: str = "set provision.image: cos-125-lts") -> Check:
        return Check("image", Verdict.FAIL, what, why, fix)

    if state in _RETIRED:
        return failed(f"the image {name} can no longer be used", f"deprecated.state is {state}")
    if shape.gpu is not None:
        gpu = catalog.gpu_type(shape.gpu)
        if resource.get("architecture") == "ARM64" or "arm64" in name:
            return failed(
                f"the image {name} is an Arm image", "COS installs GPU drivers on x86 alone"
            )
        if name.startswith("cos-dev-") or resource.get("family") == "cos-dev":
            return failed(
                f"the image {name} is of the dev channel", "COS installs no GPU driver on it"
            )
        least = gpu.cos_min_milestone
        if number is not None and least is not None and number < least:
            why = f"{gpu.accelerator} needs milestone {least} or newer ({gpu.cos_basis})"
            return failed(f"the image {name} is too old for the GPU", why)
        if number is not None and number in gpu.cos_avoid_milestones:
            fix = f"set provision.image: cos-{number - _LTS_EVERY}-lts"
            return Check(
                "image",
                Verdict.WARN,
                f"the image {name} is known for trouble with {gpu.accelerator}",
                gpu.cos_basis,
                fix,
            )
    if state == "DEPRECATED":
        why = "deprecated.state is DEPRECATED: it works by its name, and a newer one replaces it"
        return Check(
            "image",
            Verdict.WARN,
            f"the image {name} is deprecated",
            why,
            "set provision.image to its family",
        )
    return Check("image", Verdict.OK, f"{name}" + (f", milestone {number}" if number else ""))


# --- the network ----------------------------------------------------------------------------------


def firewall_check(
    rules: Iterable[Mapping[str, Any]], network: str, source: str, project: str
) -> Check:
    """Whether TCP port 22 is let in from `source` (a range) to a VM without tags: the first matching rule by priority decides.

    A rule for some sources only is told as a warning: whether you are among them is not known here.
    Without a rule nothing comes in (Google Cloud, "VPC firewall rules": the implied rule denies
    ingress).
    """
    partly = ""
    for rule in sorted(rules, key=_precedence):
        if not _concerns(rule, network):
            continue
        ranges = rule.get("sourceRanges") or [ANYWHERE]
        if _covers(ranges, source):
            if "denied" in rule:
                return _closed(
                    f"the rule {rule['name']} denies tcp:{SSH_PORT} from {source}",
                    network,
                    source,
                    project,
                )
            return Check(
                "firewall",
                Verdict.OK,
                f"tcp:{SSH_PORT} is let in from {source} by the rule {rule['name']}",
            )
        if "allowed" in rule:
            partly = partly or f"the rule {rule['name']} lets it in from {', '.join(ranges)} alone"
    if partly:
        what = f"tcp:{SSH_PORT} is let in from some addresses; whether from yours is not known here"
        return Check(
            "firewall",
            Verdict.WARN,
            what,
            partly,
            f"gcloud compute firewall-rules list --project {project}",
        )
    return _closed(
        f"no rule of the network {network} lets tcp:{SSH_PORT} in from {source}",
        network,
        source,
        project,
    )


def _closed(why: str, network: str, source: str, project: str) -> Check:
    rule = (
        f"--network {network} --allow tcp:{SSH_PORT} --source-ranges {source} --project {project}"
    )
    return Check(
        "firewall",
        Verdict.FAIL,
        "SSH would not reach the VM",
        why,
        f"gcloud compute firewall-rules create allow-ssh {rule}",
    )


def _precedence(rule: Mapping[str, Any]) -> tuple[int, bool]:
    """Lower numbers first; of the same number, what denies (Google Cloud, "VPC firewall rules", priority)."""
    return int(rule.get("priority", 1000)), "denied" not in rule


def _concerns(rule: Mapping[str, Any], network: str) -> bool:
    """It is in force, for this network, for incoming TCP 22, and for VMs without tags; rules by service account may be for ours or not."""
    if (
        rule.get("disabled")
        or rule.get("direction", "INGRESS") != "INGRESS"
        or last(str(rule.get("network", ""))) != network
    ):
        return False
    if (
        rule.get("targetTags")
        or rule.get("targetServiceAccounts")
        or (not rule.get("sourceRanges") and rule.get("sourceTags"))
    ):
        return False
    return any(_has_port(each) for each in (*rule.get("allowed", ()), *rule.get("denied", ())))


def _has_port(protocol: Mapping[str, Any]) -> bool:
    if protocol.get("IPProtocol") not in {"tcp", "6", "all"}:
        return False
    ports = protocol.get("ports", ())
    return not ports or any(
        int(first) <= SSH_PORT <= int(end or first)
        for first, _, end in (port.partition("-") for port in ports)
    )


def _covers(ranges: Iterable[str], source: str) -> bool:
    wanted = ipaddress.ip_network(source)
    found = (ipaddress.ip_network(each, strict=False) for each in ranges)
    return any(each.version == wanted.version and wanted.subnet_of(each) for each in found)  # type: ignore[arg-type]
