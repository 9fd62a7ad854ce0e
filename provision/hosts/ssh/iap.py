"""Tunnels to VMs without an external address: Identity-Aware Proxy, held open by `gcloud`. Pure.

Source of the error codes: Google Cloud, "Troubleshoot IAP TCP forwarding". Codes 4003, 4033 and
4047 go away by themselves in the first minutes of a VM (hashicorp/packer-plugin-googlecompute#34,
#37, #195).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from provision.core.errors import TunnelRefused, Unreachable
from provision.core.model import NETWORK, Host

PROGRAM = "gcloud"
SOURCE_RANGE = "35.235.240.0/20"
"""Addresses that tunnels come from; a firewall rule must admit them.

Source: Google Cloud, "Use IAP for TCP forwarding".
"""

_CODE = re.compile(r"\b(4\d{3}): ['\"]")
_LOGIN = "gcloud auth login"
_PERIMETER = "protoPayload.metadata.vpcServiceControlsUniqueId:*"


def tunnel_command(
    name: str, *, project: str, zone: str, port: int = 22, program: str = PROGRAM
) -> tuple[str, ...]:
    """Return the command whose standard input and output are a connection to the VM's port."""
    return (
        *(program, "compute", "start-iap-tunnel", name, str(port), "--listen-on-stdin"),
        *("--project", project, "--zone", zone, "--verbosity=error"),
    )


class _Failure(NamedTuple):
    what: str
    fix: str
    kind: type[Unreachable] = Unreachable


def tunnel_error(host: Host, why: str) -> Unreachable:
    """Return the error for a failed tunnel; `why` holds the end of gcloud's standard error.

    It is a `TunnelRefused` when a retry cannot succeed.
    """
    options = dict(itertools.pairwise(host.proxy))
    name, project = options.get("start-iap-tunnel", host.name), options.get("--project", "")
    code = _CODE.search(why)
    failure = (
        (_iap_failure(code[1], name, project) if code else None)
        or _gcloud_failure(host.proxy, why)
        or _Failure(
            "no SSH connection through the tunnel",
            f"gcloud compute ssh {name} --tunnel-through-iap --troubleshoot --project {project}"
            f" --zone {options.get('--zone', '')}",
        )
    )
    return failure.kind(failure.what, where=host.name, why=why, fix=failure.fix)


def _iap_failure(code: str, name: str, project: str) -> _Failure | None:
    """Return what an error code of Identity-Aware Proxy means; None for an unknown code."""
    match code:
        case "4003":
            rule = f"--network {NETWORK} --allow tcp:22 --source-ranges {SOURCE_RANGE}"
            return _Failure(
                "nothing answers at the end of the tunnel",
                f"gcloud compute firewall-rules create allow-iap-ssh {rule} --project {project}",
            )
        case "4033":
            role = "--member user:YOU --role roles/iap.tunnelResourceAccessor"
            return _Failure(
                "you may not open tunnels to this VM",
                f"gcloud projects add-iam-policy-binding {project} {role}",
            )
        case "4047":
            return _Failure("the tunnel does not find the VM", f"invoke vm.show --name {name}")
        case "4054":
            return _Failure(
                "a policy of the organisation forbids the tunnel",
                f"gcloud logging read '{_PERIMETER}' --project {project} --freshness 1h"
                "   # names it; or set provision.ssh: direct",
                TunnelRefused,
            )
    return None


def _gcloud_failure(command: Sequence[str], why: str) -> _Failure | None:
    """Return what keeps gcloud itself from working; None when it works."""
    if _LOGIN in why:
        return _Failure("gcloud is not logged in", _LOGIN, TunnelRefused)
    if _is_not_installed(command[0], why):
        return _Failure(
            "gcloud is not installed, and tunnels need it",
            "install the Google Cloud CLI (docs.cloud.google.com/sdk/docs/install), "
            "or set provision.ssh: direct",
            TunnelRefused,
        )
    return None


def _is_not_installed(program: str, why: str) -> bool:
    """Return whether the message is that of the system, or of a shell, for a missing program."""
    return any(
        f"{program}{quote}: {text}" in why
        for quote in ("", "'")
        for text in ("not found", "command not found")
    ) or ("No such file or directory" in why and program in why)
