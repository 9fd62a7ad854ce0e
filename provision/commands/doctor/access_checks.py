"""Permissions and routes that only the first use can show: each is `unknown`, with its remedy."""

from __future__ import annotations

from provision.project.project import Project
from provision.report.checks import Check, Verdict

_TUNNEL_ROLE = "roles/iap.tunnelResourceAccessor"
_GOOGLE_REGISTRIES = ("pkg.dev", "gcr.io")


def registry_checks(project: Project) -> list[Check]:
    """Return that pulling from Google's registries depends on the VM's service account."""
    settings = project.settings
    images = [image for image in (settings.worker.image, settings.worker.base_image) if image]
    names = [*settings.registries, *(image.partition("/")[0] for image in images)]
    hosts = [host for host in dict.fromkeys(names) if host.endswith(_GOOGLE_REGISTRIES)]
    if not hosts or settings.cloud == "mock":
        return []
    return [
        Check(
            "registries",
            Verdict.UNKNOWN,
            f"whether the VM's service account may pull from {', '.join(hosts)} "
            "is seen when it does",
            "it needs Artifact Registry Reader on the repository; "
            "its permissions cannot be read from here",
            f"gcloud artifacts repositories list --project {settings.project}",
        )
    ]


def iap_checks(project: Project) -> list[Check]:
    """Return that the tunnel depends on a role of the user; nothing without tunnels."""
    if not _uses_iap(project):
        return []
    policy = f"gcloud projects add-iam-policy-binding {project.settings.project}"
    return [
        Check(
            "iap",
            Verdict.UNKNOWN,
            f"that your account has {_TUNNEL_ROLE} is seen when a tunnel opens",
            "roles cannot be read with the Compute Engine API; "
            "without it a tunnel ends with code 4033",
            f"{policy} --member user:YOU --role {_TUNNEL_ROLE}",
        )
    ]


def egress_checks(project: Project) -> list[Check]:
    """Return that downloads depend on the network of a VM without an external address."""
    if not _uses_iap(project):
        return []
    return [
        Check(
            "egress",
            Verdict.UNKNOWN,
            "whether a VM without external address can download driver and images "
            "is not known before it tries",
            "it needs Cloud NAT, or Private Google Access for what Google hosts "
            "(Docker Hub needs NAT)",
            f"gcloud compute routers list --project {project.settings.project}",
        )
    ]


def _uses_iap(project: Project) -> bool:
    return project.settings.ssh == "iap" and project.settings.cloud != "mock"
