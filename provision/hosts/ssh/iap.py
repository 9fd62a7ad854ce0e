"""The way to a VM without an external address: a tunnel of Identity-Aware Proxy, held open by `gcloud`. Pure.

Codes and what lies behind them: Google Cloud, "Troubleshoot IAP TCP forwarding"; that 4003, 4033
and 4047 pass by themselves in the first minutes of a VM: hashicorp/packer-plugin-googlecompute#34,
#37, #195.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from provision.core.errors import TunnelRefused, Unreachable
from provision.core.model import NETWORK, Host

PROGRAM = "gcloud"
SOURCE_RANGE = "35.235.240.0/20"
"""Where tunnels come from; a firewall rule must let them in (Google Cloud, "Use IAP for TCP
forwarding")."""

_CODE = re.compile(r"\b(4\d{3}): ['\"]")
_LOGIN = "gcloud auth login"
_PERIMETER = "protoPayload.metadata.vpcServiceControlsUniqueId:*"


def tunnel(
    name: str, *, project: str, zone: str, port: int = 22, program: str = PROGRAM
) -> tuple[str, ...]:
    """The words of the program whose standard input and output are a connection to the VM's port."""
    where = ("--project", project, "--zone", zone)
    return (
        program,
        "compute",
        "start-iap-tunnel",
        name,
        str(port),
        "--listen-on-stdin",
        *where,
        "--verbosity=error",
    )


def explained(host: Host, why: str) -> Unreachable:
    """The error for a tunnel that was not there; `why` holds the program's last words. `TunnelRefused` where waiting is of no use."""
    said = _CODE.search(why)
    words = dict(itertools.pairwise(host.proxy))
    project, name = words.get("--project", ""), words.get("start-iap-tunnel", host.name)
    kind: type[Unreachable] = Unreachable
    match said[1] if said else None:
        case "4003":
            what = "nothing answers at the end of the tunnel"
            rule = f"--network {NETWORK} --allow tcp:22 --source-ranges {SOURCE_RANGE} --project {project}"
            fix = f"gcloud compute firewall-rules create allow-iap-ssh {rule}"
        case "4033":
            what = "you may not open tunnels to this VM"
            role = "--member user:YOU --role roles/iap.tunnelResourceAccessor"
            fix = f"gcloud projects add-iam-policy-binding {project} {role}"
        case "4047":
            what = "the tunnel does not find the VM"
            fix = f"invoke vm.show --name {name}"
        case "4054":
            kind, what = TunnelRefused, "a policy of the organisation forbids the tunnel"
            fix = f"gcloud logging read '{_PERIMETER}' --project {project} --freshness 1h   # names it; or set provision.ssh: direct"
        case _ if _LOGIN in why:
            kind, what, fix = TunnelRefused, "gcloud is not logged in", _LOGIN
        case _ if _is_missing(host.proxy, why):
            kind, what = TunnelRefused, "gcloud is not installed, and tunnels need it"
            fix = "install the Google Cloud CLI (docs.cloud.google.com/sdk/docs/install), or set provision.ssh: direct"
        case _:
            what = "no SSH connection through the tunnel"
            fix = f"gcloud compute ssh {name} --tunnel-through-iap --troubleshoot --project {project} --zone {words.get('--zone', '')}"
    return kind(what, where=host.name, why=why, fix=fix)


def _is_missing(words: Sequence[str], why: str) -> bool:
    """True for what the system says of a program that is not there, or the shell that ssh starts it with."""
    return any(
        f"{words[0]}{quote}: {text}" in why
        for quote in ("", "'")
        for text in ("not found", "command not found")
    ) or ("No such file or directory" in why and words[0] in why)
