"""`doctor`: everything that can be checked before money is spent, each line with its fact and its remedy.

Each check looks for itself, and one that fails hides no other; what needs the cloud reads `unknown`
while the cloud cannot be asked. Nothing is changed, here or there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from provision.cloud import preflight
from provision.cloud.api import live
from provision.cloud.api.client import LOGIN, ComputeClient, credentials_in_use
from provision.cloud.market import catalog
from provision.cloud.market.catalog import Shape
from provision.cloud.market.placement import EVERYWHERE, region_of
from provision.cloud.market.plan import price_line
from provision.cloud.refusal import CloudRefused
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.spec import wanted
from provision.core.errors import (
    EXIT_FAILED,
    CloudAuthError,
    CloudError,
    CloudNotFound,
    ProvisionError,
)
from provision.core.model import NETWORK, VmSpec
from provision.hosts.ssh.iap import PROGRAM as GCLOUD
from provision.hosts.ssh.iap import SOURCE_RANGE
from provision.project.owned_vms import unfinished_vm_lines
from provision.project.project import Project
from provision.report.checks import Check, Verdict, checks_document, checks_lines, columns, count

T = TypeVar("T")
_API_OFF = ("accessNotConfigured", "SERVICE_DISABLED")
_TUNNEL_ROLE = "roles/iap.tunnelResourceAccessor"
_OURS = ("pkg.dev", "gcr.io")


def doctor(project: Project) -> TaskResult:
    """Check what can be checked; exit status 1 when something would surely fail."""
    checks = list(_checks(project))
    failed = count(checks, Verdict.FAIL)
    document = {**checks_document(checks), "ok": not failed}
    return TaskResult(
        document, EXIT_FAILED if failed else 0, "\n".join(checks_lines(checks, width=columns()))
    )


def _checks(project: Project) -> Iterator[Check]:
    state = _state(project)
    yield from state
    local = (
        (_settings, _driver, _tools) if state else (_settings, _driver, _key, _tools, _left_behind)
    )
    for look in local:
        name = look.__name__.strip("_").replace("_", "-")
        yield from _guarded(name, lambda look=look: look(project))  # type: ignore[misc]
    yield from _Cloud(project).checks()
    for look in (_registries, _iap, _egress, _price):
        yield from _guarded(look.__name__.strip("_"), lambda look=look: look(project))  # type: ignore[misc]


def _guarded(name: str, look: Callable[[], Sequence[Check]]) -> Sequence[Check]:
    """What a check found; its own failure is a failed check. What may not be read is unknown, not wrong."""
    try:
        return look()
    except CloudAuthError as error:
        return [Check(name, Verdict.UNKNOWN, error.what, error.why, error.fix)]
    except ProvisionError as error:
        return [Check(name, Verdict.FAIL, error.what, error.why, error.fix)]


# --- here -----------------------------------------------------------------------------------------


def _state(project: Project) -> list[Check]:
    """A line where the state folder could not be written to, or made; nothing is written to find out."""
    there = next(path for path in (project.home, *project.home.parents) if os.path.lexists(path))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    why = f"{there} is {'not yours to write to' if there.is_dir() else 'no folder'}"
    return [
        Check(
            "state",
            Verdict.FAIL,
            f"state cannot be kept in {project.state_dir}",
            why,
            "XDG_STATE_HOME=FOLDER keeps it elsewhere",
        )
    ]


def _settings(project: Project) -> list[Check]:
    """They were valid, or the task would not have begun; here is what they mean, and what is unusual about it."""
    settings, spec = project.settings, wanted(project, project.settings.name)
    where = "the mock" if settings.cloud == "mock" else f"project {settings.project}"
    checks = [
        Check(
            "settings",
            Verdict.OK,
            f"{spec.name}: {Shape.of(spec)}, {spec.disk_gb} GB, {spec.image}, in {where}",
        )
    ]
    job = settings.dataflow.machine_type
    if job and job != spec.machine_type:
        why = f"the VM is {spec.machine_type}: another number of vCPUs means another number of SDK processes on the GPU"
        checks.append(
            Check(
                "dataflow",
                Verdict.WARN,
                f"the Dataflow job runs on {job}",
                why,
                "remove provision.machine_type",
            )
        )
    if spec.ttl_s is None:
        why = "a VM that is forgotten bills until somebody deletes it"
        checks.append(
            Check(
                "ttl",
                Verdict.WARN,
                "no time to live: the cloud never stops the VM",
                why,
                "set provision.ttl: 8h",
            )
        )
    return checks


def _driver(project: Project) -> list[Check]:
    settings = project.settings
    if settings.gpu is None:
        return []
    gpu, branch = catalog.gpu_type(settings.gpu), catalog.driver_branch(settings.driver)
    newest = gpu.max_driver
    if newest and (settings.driver == "latest" or (branch is not None and branch > newest)):
        why = f"R{newest} is taken to be the last branch that drives {gpu.accelerator} (inferred from NVIDIA's support policy)"
        return [
            Check(
                "driver",
                Verdict.WARN,
                f"the driver {settings.driver} may be too new",
                why,
                f"set provision.driver: R{newest}",
            )
        ]
    return [
        Check(
            "driver",
            Verdict.OK,
            f"{settings.driver}"
            + (f", R{gpu.min_driver} or newer is needed" if gpu.min_driver else ""),
        )
    ]


def _key(project: Project) -> list[Check]:
    path = project.home / "key"
    if not path.exists():
        return [Check("key", Verdict.OK, "the first VM makes the project's key pair")]
    if path.stat().st_mode & 0o077:
        what, why = (
            f"others may read the private key {path}",
            f"its mode is {path.stat().st_mode & 0o777:o}",
        )
        return [Check("key", Verdict.WARN, what, why, f"chmod 600 {path}")]
    return [Check("key", Verdict.OK, "the project's key pair is there, readable by you alone")]


def _tools(project: Project) -> list[Check]:
    """Programs that tasks call on this machine."""

    def found(name: str) -> bool:
        return shutil.which(name, path=project.environ.get("PATH")) is not None

    checks = []
    if project.settings.ssh == "iap" and project.settings.cloud == "gce":
        install = "install the Google Cloud CLI (docs.cloud.google.com/sdk/docs/install), or set provision.ssh: direct"
        checks.append(
            Check(
                "gcloud",
                Verdict.OK,
                "gcloud is installed; that it is logged in is seen when a tunnel opens",
            )
            if found(GCLOUD)
            else Check(
                "gcloud",
                Verdict.FAIL,
                "the program gcloud is not installed",
                "provision.ssh: iap opens tunnels with it",
                install,
            )
        )
    missing = [name for name in ("ssh", "git") if not found(name)]
    if missing:
        why = "ssh: terminals of vm.ssh and dev.shell have less of what OpenSSH does; git: says which files dev.run sends"
        return [
            *checks,
            Check(
                "tools",
                Verdict.WARN,
                f"not installed here: {', '.join(missing)}",
                why,
                "install them",
            ),
        ]
    return [*checks, Check("tools", Verdict.OK, "ssh and git are installed")]


def _left_behind(project: Project) -> list[Check]:
    lines = unfinished_vm_lines(project)
    if not lines:
        return [Check("left-behind", Verdict.OK, "no earlier run left anything in doubt")]
    what = "an earlier run may have left something that bills"
    return [
        Check("left-behind", Verdict.WARN, what, "\n".join(lines), f"{project.program_argv0} vm.gc")
    ]


# --- there ----------------------------------------------------------------------------------------


@dataclass
class _Cloud:
    """What the cloud says; what one check read serves the next."""

    project: Project
    spec: VmSpec = field(init=False)
    zones: tuple[str, ...] = ()
    """Those that fit, in the order of asking."""
    about: dict[str, Any] = field(default_factory=dict)
    """The project, as the API describes it."""

    def __post_init__(self) -> None:
        self.spec = wanted(self.project, self.project.settings.name)

    def checks(self) -> Iterator[Check]:
        """Credentials and project first: without them the rest cannot be asked."""
        first = _guarded("credentials", self._credentials)
        yield from first
        if any(check.status is not Verdict.OK for check in first):
            yield from self._not_asked("there are no credentials")
            return
        try:
            client = self.project.connect_client()
        except ProvisionError as error:
            yield Check("project", Verdict.FAIL, error.what, error.why, error.fix)
            return
        except OSError:
            yield Check(
                "project", Verdict.UNKNOWN, "not looked at: the mock keeps its state with the rest"
            )
            yield from self._not_asked("the mock did not start")
            return
        try:
            found = self._project(client)
            yield found
            if found.status is Verdict.FAIL:
                yield from self._not_asked("the project did not answer")
                return
            for name, look in self._looks().items():
                yield from _guarded(name, lambda look=look: look(client))  # type: ignore[misc]
        finally:
            client.close()

    def _looks(self) -> dict[str, Callable[[ComputeClient], list[Check]]]:
        """What is looked at once the project answers."""
        return {
            "service-account": self._service_account,
            "os-login": self._os_login,
            "zones": self._zones,
            "quota": self._quotas,
            "image": self._image,
            "firewall": self._firewall,
        }

    def _not_asked(self, why: str) -> Iterator[Check]:
        for name in self._looks():
            yield Check(name, Verdict.UNKNOWN, f"not looked at: {why}")

    def _credentials(self) -> list[Check]:
        if self.project.settings.cloud == "mock":
            return [Check("credentials", Verdict.OK, "the mock needs none")]
        try:
            return [
                Check(
                    "credentials",
                    Verdict.OK,
                    f"Application Default Credentials: {credentials_in_use()}",
                )
            ]
        except CloudAuthError as error:
            return [Check("credentials", Verdict.FAIL, error.what, error.why, LOGIN)]

    def _project(self, client: ComputeClient) -> Check:
        """Whether the project can be read, with the Compute Engine API enabled."""
        name = client.project
        try:
            self.about = client.read("ProjectsClient", "get", "the project could not be read", name)
        except CloudNotFound as error:
            return Check(
                "project",
                Verdict.FAIL,
                f"there is no project {name}",
                error.why,
                "gcloud projects list",
            )
        except CloudRefused as error:
            refusal = error.refusal
            if refusal.code in _API_OFF or "has not been used in project" in refusal.message:
                fix = f"gcloud services enable compute.googleapis.com --project {name}"
                return Check(
                    "project", Verdict.FAIL, "the Compute Engine API is not enabled", error.why, fix
                )
            if refusal.http_status == 403:
                fix = f"gcloud projects add-iam-policy-binding {name} --member user:YOU --role roles/compute.instanceAdmin.v1"
                return Check(
                    "project", Verdict.FAIL, f"you may not read the project {name}", error.why, fix
                )
            return Check("project", Verdict.FAIL, error.what, error.why, error.fix)
        except CloudError as error:
            return Check("project", Verdict.FAIL, error.what, error.why, error.fix)
        return Check("project", Verdict.OK, f"{name} answers, with the Compute Engine API enabled")

    def _service_account(self, _client: ComputeClient) -> list[Check]:
        return [preflight.service_account_check(self.about)]

    def _os_login(self, _client: ComputeClient) -> list[Check]:
        return [preflight.os_login_check(self.about, self.project.settings.os_login)]

    def _zones(self, client: ComputeClient) -> list[Check]:
        shape, settings = Shape.of(self.spec), self.project.settings
        with_machine = [each.zone for each in live.machines(client, [self.spec.machine_type])]
        with_gpu = sorted(with_machine)
        if shape.gpu is not None:
            accelerator = catalog.gpu_type(shape.gpu).accelerator
            with_gpu = sorted(
                zone for zone, names in live.accelerators(client).items() if accelerator in names
            )
        if catalog.parse_n1(self.spec.machine_type) and "custom-" in self.spec.machine_type:
            with_machine = with_gpu  # the API lists no types of one's own numbers
        check, self.zones = preflight.zone_check(shape, settings.zones, with_gpu, with_machine)
        if (
            check.status is not Verdict.OK
        ):  # a misspelt zone and one without the GPU look alike so far
            check, _zones = preflight.zone_check(
                shape, settings.zones, with_gpu, with_machine, known=live.zones(client)
            )
        return [check]

    def _quotas(self, client: ComputeClient) -> list[Check]:
        if not self.zones:
            return [
                Check(
                    "quota", Verdict.UNKNOWN, "not looked at: no zone fits, so no region is meant"
                )
            ]
        quotas = live.quotas(client, [*dict.fromkeys(map(region_of, self.zones))])
        return preflight.quota_checks(quotas, self.spec, self.zones, client.project)

    def _image(self, client: ComputeClient) -> list[Check]:
        return [
            preflight.image_check(
                live.image(client, live.image_ref(self.spec.image)), Shape.of(self.spec)
            )
        ]

    def _firewall(self, client: ComputeClient) -> list[Check]:
        try:
            live.network(client, NETWORK)
        except CloudNotFound as error:
            fix = f"gcloud compute networks create {NETWORK} --project {client.project}"
            return [
                Check(
                    "firewall",
                    Verdict.FAIL,
                    f"there is no network {NETWORK}, which the VM is put into",
                    error.why,
                    fix,
                )
            ]
        source = SOURCE_RANGE if self.project.settings.ssh == "iap" else preflight.ANYWHERE
        return [preflight.firewall_check(live.firewalls(client), NETWORK, source, client.project)]


# --- what remains ---------------------------------------------------------------------------------


def _registries(project: Project) -> list[Check]:
    """Registries of Google's that the settings name: the VM logs in to them as its service account."""
    worker = project.settings.worker
    named = [
        *project.settings.registries,
        *(image.partition("/")[0] for image in (worker.image, worker.base_image) if image),
    ]
    hosts = [host for host in dict.fromkeys(named) if host.endswith(_OURS)]
    if not hosts or project.settings.cloud == "mock":
        return []
    what = f"whether the VM's service account may pull from {', '.join(hosts)} is seen when it does"
    why = "it needs Artifact Registry Reader on the repository; its permissions cannot be read from here"
    fix = f"gcloud artifacts repositories list --project {project.settings.project}"
    return [Check("registries", Verdict.UNKNOWN, what, why, fix)]


def _iap(project: Project) -> list[Check]:
    if project.settings.ssh != "iap" or project.settings.cloud == "mock":
        return []
    what = f"that your account has {_TUNNEL_ROLE} is seen when a tunnel opens"
    why = (
        "roles cannot be read with the Compute Engine API; without it a tunnel ends with code 4033"
    )
    member = f"--member user:YOU --role {_TUNNEL_ROLE}"
    return [
        Check(
            "iap",
            Verdict.UNKNOWN,
            what,
            why,
            f"gcloud projects add-iam-policy-binding {project.settings.project} {member}",
        )
    ]


def _egress(project: Project) -> list[Check]:
    if project.settings.ssh != "iap" or project.settings.cloud == "mock":
        return []
    what = "whether a VM without external address can download driver and images is not known before it tries"
    why = (
        "it needs Cloud NAT, or Private Google Access for what Google hosts (Docker Hub needs NAT)"
    )
    return [
        Check(
            "egress",
            Verdict.UNKNOWN,
            what,
            why,
            f"gcloud compute routers list --project {project.settings.project}",
        )
    ]


def _price(project: Project) -> list[Check]:
    """That of the first place that the settings name."""
    place = project.settings.zones[0]
    if place == EVERYWHERE:
        return [
            Check(
                "price",
                Verdict.UNKNOWN,
                "depends on the region, and the settings name none",
                "",
                f"{project.program_argv0} vm.offers",
            )
        ]
    zone = place if place[-2:-1] == "-" else f"{place}-a"
    line = price_line(
        wanted(project, project.settings.name), zone, project.price_list
    ).removeprefix("price: ")
    if line.startswith("unknown: "):
        what, fix = line.removeprefix("unknown: "), "set provision.prices to a list of yours"
        return [Check("price", Verdict.UNKNOWN, what, "nothing is guessed", fix)]
    return [Check("price", Verdict.OK, line)]
