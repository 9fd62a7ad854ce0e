"""Whether the project has a service account for VMs, and how keys reach them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.cloud.api import oslogin
from provision.cloud.api.resources import items_to_dict
from provision.report.checks import Check, Verdict


def service_account_check(project: Mapping[str, Any]) -> Check:
    """Return the check whether the project has its default service account, which VMs run as."""
    name = str(project.get("defaultServiceAccount", ""))
    if name:
        return Check("service-account", Verdict.OK, f"VMs run as {name}")
    return Check(
        "service-account",
        Verdict.FAIL,
        "the project has no default service account",
        "VMs run as it: it reads driver and images for them",
        f"gcloud iam service-accounts list --project {project.get('name', '')}",
    )


def os_login_check(project: Mapping[str, Any], setting: str) -> Check:
    """Return how keys reach the VM: in its metadata, or through OS Login.

    OS Login needs a role that cannot be read with the Compute Engine API.
    """
    is_on = oslogin.is_enabled(items_to_dict(project.get("commonInstanceMetadata", {})))
    if setting == "on" or (setting == "auto" and is_on):
        role = oslogin.LOGIN_ROLE
        binding = f"{project.get('name', '')} --member user:YOU --role {role}"
        return Check(
            "os-login",
            Verdict.UNKNOWN,
            f"OS Login is on: that your account has {role} is seen at the first login",
            "owners have it; roles cannot be read with the Compute Engine API",
            f"gcloud projects add-iam-policy-binding {binding}",
        )
    if is_on:
        return Check(
            "os-login",
            Verdict.WARN,
            "the project asks for OS Login, the settings turn it off",
            "a policy of the organisation may refuse such a VM",
            "set provision.os_login: auto",
        )
    what = "OS Login is not asked for: the project's key goes into the VM's metadata"
    return Check("os-login", Verdict.OK, what)
