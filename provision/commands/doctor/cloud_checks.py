"""Checks of the Google Cloud project: credentials, API, zones, quotas, image, network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.cloud.api import queries
from provision.cloud.api.client import ComputeClient
from provision.cloud.api.credentials import LOGIN_COMMAND, describe_credentials
from provision.cloud.api.images import image_ref
from provision.cloud.market import catalog
from provision.cloud.market.catalog import Shape
from provision.cloud.market.zone_order import region_of
from provision.cloud.preflight.firewall import ANYWHERE, firewall_check
from provision.cloud.preflight.image import image_check
from provision.cloud.preflight.project import os_login_check, service_account_check
from provision.cloud.preflight.quotas import quota_checks
from provision.cloud.preflight.zones import zone_check
from provision.cloud.refusal import CloudRefused
from provision.commands.doctor.error_as_check import error_as_check
from provision.commands.vm.shared.vm_spec import vm_spec_of_settings
from provision.core.errors import CloudAuthError, CloudError, CloudNotFound, ProvisionError
from provision.core.model import NETWORK, VmSpec
from provision.hosts.ssh.iap import SOURCE_RANGE
from provision.project.project import Project
from provision.report.checks import Check, Verdict

_API_DISABLED = ("accessNotConfigured", "SERVICE_DISABLED")


@dataclass
class CloudChecks:
    """The checks that need the cloud; later ones use what earlier ones fetched."""

    project: Project
    spec: VmSpec = field(init=False)
    zones: tuple[str, ...] = ()
    """The zones with the machine and the GPU, in the order of requests."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """The project, as the API describes it."""

    def __post_init__(self) -> None:
        self.spec = vm_spec_of_settings(self.project, self.project.settings.name)

    def run(self) -> Iterator[Check]:
        """Yield the checks; without credentials or project the others are `unknown`."""
        credentials = error_as_check("credentials", _credentials_checks, self.project)
        yield from credentials
        if any(check.status is not Verdict.OK for check in credentials):
            yield from self._not_checked("there are no credentials")
            return
        try:
            client = self.project.connect_client()
        except ProvisionError as error:
            yield Check("project", Verdict.FAIL, error.what, error.why, error.fix)
            return
        except OSError:
            what = "not checked: the mock keeps its state with the rest"
            yield Check("project", Verdict.UNKNOWN, what)
            yield from self._not_checked("the mock did not start")
            return
        try:
            yield from self._with_client(client)
        finally:
            client.close()

    def _with_client(self, client: ComputeClient) -> Iterator[Check]:
        check = self._project_check(client)
        yield check
        if check.status is Verdict.FAIL:
            yield from self._not_checked("the project did not answer")
            return
        for name, fetch in self._checks_by_name().items():
            yield from error_as_check(name, fetch, client)

    def _checks_by_name(self) -> dict[str, Callable[[ComputeClient], list[Check]]]:
        """The checks that need an accessible project, by id and in order."""
        return {
            "service-account": self._service_account_checks,
            "os-login": self._os_login_checks,
            "zones": self._zone_checks,
            "quota": self._quota_checks,
            "image": self._image_checks,
            "firewall": self._firewall_checks,
        }

    def _not_checked(self, why: str) -> Iterator[Check]:
        for name in self._checks_by_name():
            yield Check(name, Verdict.UNKNOWN, f"not checked: {why}")

    def _project_check(self, client: ComputeClient) -> Check:
        """The check whether the project can be read, with the Compute Engine API enabled."""
        name = client.project
        try:
            self.description = client.read(
                "ProjectsClient", "get", "the project could not be read", name
            )
        except CloudNotFound as error:
            what = f"there is no project {name}"
            return Check("project", Verdict.FAIL, what, error.why, "gcloud projects list")
        except CloudRefused as error:
            return _refused_project_check(name, error)
        except CloudError as error:
            return Check("project", Verdict.FAIL, error.what, error.why, error.fix)
        return Check("project", Verdict.OK, f"{name} answers, with the Compute Engine API enabled")

    def _service_account_checks(self, _client: ComputeClient) -> list[Check]:
        return [service_account_check(self.description)]

    def _os_login_checks(self, _client: ComputeClient) -> list[Check]:
        return [os_login_check(self.description, self.project.settings.os_login)]

    def _zone_checks(self, client: ComputeClient) -> list[Check]:
        """The check whether zones of the settings have the machine and the GPU; sets `zones`."""
        shape, settings = Shape.of(self.spec), self.project.settings
        with_machine = [
            each.zone for each in queries.list_machine_types(client, [self.spec.machine_type])
        ]
        with_gpu = sorted(with_machine)
        if shape.gpu is not None:
            accelerator = catalog.gpu_type(shape.gpu).accelerator
            with_gpu = sorted(
                zone
                for zone, names in queries.list_accelerators(client).items()
                if accelerator in names
            )
        if catalog.parse_n1(self.spec.machine_type) and "custom-" in self.spec.machine_type:
            with_machine = with_gpu  # the API does not list custom machine types
        check, self.zones = zone_check(shape, settings.zones, with_gpu, with_machine)
        if check.status is not Verdict.OK:  # distinguish a misspelt zone from one without the GPU
            check, _zones = zone_check(
                shape, settings.zones, with_gpu, with_machine, known=queries.list_zones(client)
            )
        return [check]

    def _quota_checks(self, client: ComputeClient) -> list[Check]:
        if not self.zones:
            what = "not checked: no zone fits, so there is no region to check"
            return [Check("quota", Verdict.UNKNOWN, what)]
        quotas = queries.fetch_quotas(client, [*dict.fromkeys(map(region_of, self.zones))])
        return quota_checks(quotas, self.spec, self.zones, client.project)

    def _image_checks(self, client: ComputeClient) -> list[Check]:
        image = queries.fetch_image(client, image_ref(self.spec.image))
        return [image_check(image, Shape.of(self.spec))]

    def _firewall_checks(self, client: ComputeClient) -> list[Check]:
        try:
            queries.fetch_network(client, NETWORK)
        except CloudNotFound as error:
            what = f"there is no network {NETWORK}, which the VM is put into"
            fix = f"gcloud compute networks create {NETWORK} --project {client.project}"
            return [Check("firewall", Verdict.FAIL, what, error.why, fix)]
        source = SOURCE_RANGE if self.project.settings.ssh == "iap" else ANYWHERE
        return [
            firewall_check(queries.list_firewall_rules(client), NETWORK, source, client.project)
        ]


def _credentials_checks(project: Project) -> list[Check]:
    if project.settings.cloud == "mock":
        return [Check("credentials", Verdict.OK, "the mock needs none")]
    try:
        what = f"Application Default Credentials: {describe_credentials()}"
    except CloudAuthError as error:
        return [Check("credentials", Verdict.FAIL, error.what, error.why, LOGIN_COMMAND)]
    return [Check("credentials", Verdict.OK, what)]


def _refused_project_check(name: str, error: CloudRefused) -> Check:
    """The failed check of a project that refuses to be read, with the remedy for the reason."""
    refusal = error.refusal
    if refusal.code in _API_DISABLED or "has not been used in project" in refusal.message:
        what = "the Compute Engine API is not enabled"
        fix = f"gcloud services enable compute.googleapis.com --project {name}"
        return Check("project", Verdict.FAIL, what, error.why, fix)
    if refusal.http_status == 403:
        what = f"you may not read the project {name}"
        policy = f"gcloud projects add-iam-policy-binding {name}"
        fix = f"{policy} --member user:YOU --role roles/compute.instanceAdmin.v1"
        return Check("project", Verdict.FAIL, what, error.why, fix)
    return Check("project", Verdict.FAIL, error.what, error.why, error.fix)
