"""Whether the network lets SSH in. Pure.

Sources: Compute Engine API v1 (`firewalls`); Google Cloud, "VPC firewall rules" and "Use IAP for
TCP forwarding" (source range of tunnels).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from provision.cloud.api.resources import last_segment
from provision.report.checks import Check, Verdict

Rule = Mapping[str, Any]

SSH_PORT = 22
ANYWHERE = "0.0.0.0/0"


def firewall_check(rules: Iterable[Rule], network: str, source: str, project: str) -> Check:
    """Return the check whether TCP port 22 is open from the range `source` to a VM without tags.

    The first rule by priority that covers the whole range decides; without one the port is closed
    (implied rule). A rule that allows a part of the range is a warning, since the caller's address
    is unknown.
    """
    partly = ""
    for rule in sorted(rules, key=_precedence):
        if not _applies(rule, network):
            continue
        ranges = rule.get("sourceRanges") or [ANYWHERE]
        if _covers(ranges, source) and "denied" in rule:
            why = f"the rule {rule['name']} denies tcp:{SSH_PORT} from {source}"
            return _closed(why, network, source, project)
        if _covers(ranges, source):
            what = f"tcp:{SSH_PORT} is let in from {source} by the rule {rule['name']}"
            return Check("firewall", Verdict.OK, what)
        if "allowed" in rule and not partly:
            partly = f"the rule {rule['name']} lets it in from {', '.join(ranges)} alone"
    if not partly:
        why = f"no rule of the network {network} lets tcp:{SSH_PORT} in from {source}"
        return _closed(why, network, source, project)
    return Check(
        "firewall",
        Verdict.WARN,
        f"tcp:{SSH_PORT} is let in from some addresses; whether from yours is not known here",
        partly,
        f"gcloud compute firewall-rules list --project {project}",
    )


def _closed(why: str, network: str, source: str, project: str) -> Check:
    rule = (
        f"--network {network} --allow tcp:{SSH_PORT} --source-ranges {source} --project {project}"
    )
    fix = f"gcloud compute firewall-rules create allow-ssh {rule}"
    return Check("firewall", Verdict.FAIL, "SSH would not reach the VM", why, fix)


def _precedence(rule: Rule) -> tuple[int, bool]:
    """Return the sort key: lower numbers first; of one number, denying rules first."""
    return int(rule.get("priority", 1000)), "denied" not in rule


def _applies(rule: Rule, network: str) -> bool:
    """Return whether the rule is about SSH into VMs without tags in this network.

    Rules by service account are left out: the service account of the VM is not known here.
    """
    if rule.get("disabled") or rule.get("direction", "INGRESS") != "INGRESS":
        return False
    if last_segment(str(rule.get("network", ""))) != network:
        return False
    if rule.get("targetTags") or rule.get("targetServiceAccounts"):
        return False
    if not rule.get("sourceRanges") and rule.get("sourceTags"):
        return False
    return any(_has_ssh(part) for part in (*rule.get("allowed", ()), *rule.get("denied", ())))


def _has_ssh(protocol: Rule) -> bool:
    if protocol.get("IPProtocol") not in {"tcp", "6", "all"}:
        return False
    ports = protocol.get("ports", ())
    limits = (port.partition("-") for port in ports)
    return not ports or any(
        int(first) <= SSH_PORT <= int(last or first) for first, _, last in limits
    )


def _covers(ranges: Iterable[str], source: str) -> bool:
    wanted = ipaddress.ip_network(source)
    networks = (ipaddress.ip_network(text, strict=False) for text in ranges)
    return any(
        network.version == wanted.version and wanted.subnet_of(network)  # type: ignore[arg-type]
        for network in networks
    )
