"""`doctor`: its checks, their facts and remedies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from provision.cloud.api.credentials import LOGIN_COMMAND
from provision.commands.doctor.doctor import doctor
from provision.commands.shared.result import TaskResult
from provision.core.errors import CloudAuthError
from provision.settings import Level, Settings
from provision.testing.compute import html_502, http_error
from tests.mock.emulated_project import EmulatedProject, emulated

__all__ = ["emulated"]
SURE = {
    "settings",
    "driver",
    "key",
    "tools",
    "left-behind",
    "credentials",
    "project",
    "service-account",
    "os-login",
    "zones",
    "quota-us-central1",
    "image",
    "firewall",
    "price",
}


def statuses(done: TaskResult) -> dict[str, str]:
    return {check["id"]: check["status"] for check in done.document["checks"]}


def check_of(done: TaskResult, name: str) -> dict[str, str]:
    found: dict[str, str] = next(check for check in done.document["checks"] if check["id"] == name)
    return found


def test_fresh_mock_passes_every_check(emulated: EmulatedProject) -> None:
    done = doctor(emulated.project())
    assert (done.exit_code, done.document["ok"]) == (0, True)
    assert statuses(done) == {**dict.fromkeys(SURE, "ok"), "tools": statuses(done)["tools"]}
    assert {tuple(check) for check in done.document["checks"]} == {
        ("id", "status", "what", "why", "fix")
    }
    assert max(map(len, done.text.splitlines())) <= 100
    assert not (emulated.state_dir / "projects").exists(), "nothing was written"


@pytest.mark.parametrize("below", ["", "provision"])
def test_unusable_state_folder_fails_one_check_alone(emulated: EmulatedProject, below: str) -> None:
    emulated.state_dir.write_text("a file")
    project = replace(emulated.project(), state_dir=emulated.state_dir / below)
    done = doctor(project)
    assert done.exit_code == 1
    assert check_of(done, "state")["status"] == "fail"
    assert check_of(done, "state")["what"] == f"state cannot be kept in {project.state_dir}"
    assert check_of(done, "state")["fix"] == "XDG_STATE_HOME=FOLDER keeps it elsewhere"
    unseen = {"key", "left-behind"}
    assert {
        name: status for name, status in statuses(done).items() if name not in {"state", "tools"}
    } == dict.fromkeys(SURE - unseen - {"tools"}, "ok")


def test_doctor_sends_eight_requests_and_changes_nothing(emulated: EmulatedProject) -> None:
    doctor(emulated.project(zones=["us-central1", "us-east1", "europe-west4-a"]))
    apis = [call.api for call in emulated.emulator.calls]
    assert sorted(apis) == sorted(
        [
            "projects.get",
            "machineTypes.aggregatedList",
            "acceleratorTypes.aggregatedList",
            "projects.get",
            "regions.list",
            "images.getFromFamily",
            "networks.get",
            "firewalls.list",
        ]
    )


@pytest.mark.parametrize(
    ("code", "message", "what", "fix"),
    [
        (
            "accessNotConfigured",
            "Compute Engine API has not been used in project 1 before or it is disabled.",
            "API is not enabled",
            "services enable",
        ),
        (
            "forbidden",
            "Required 'compute.projects.get' permission for 'projects/mock-project'",
            "may not read",
            "add-iam-policy-binding",
        ),
    ],
)
def test_missing_permission_and_disabled_api_have_different_remedies(
    emulated: EmulatedProject, code: str, message: str, what: str, fix: str
) -> None:
    emulated.emulator.faults.add(http_error(403, code, message, call="projects.get", times=None))
    done = doctor(emulated.project())
    assert done.exit_code == 1
    assert what in check_of(done, "project")["what"]
    assert message in check_of(done, "project")["why"]
    assert fix in check_of(done, "project")["fix"]
    assert {
        statuses(done)[name]
        for name in ("service-account", "os-login", "zones", "quota", "image", "firewall")
    } == {"unknown"}
    assert statuses(done)["price"] == "ok"


def test_failed_check_hides_no_other(emulated: EmulatedProject) -> None:
    emulated.emulator.quotas.set("NVIDIA_L4_GPUS", 0)
    emulated.emulator.firewalls[:] = []
    emulated.emulator.faults.add(
        html_502(call="acceleratorTypes.aggregatedList", times=1)
    )  # read again by itself
    (emulated.project().home).mkdir(parents=True)
    (emulated.project().home / "key").write_text("x")
    (emulated.project().home / "key").chmod(0o644)
    done = doctor(emulated.project(ttl="none", image="cos-117-lts"))
    assert done.exit_code == 1
    assert done.document["ok"] is False
    bad = {
        name: status
        for name, status in statuses(done).items()
        if status != "ok" and name != "tools"
    }
    assert bad == {
        "ttl": "warn",
        "key": "warn",
        "quota-us-central1": "fail",
        "image": "fail",
        "firewall": "fail",
    }
    assert "limit 0" in check_of(done, "quota-us-central1")["why"]
    assert check_of(done, "firewall")["fix"].startswith("gcloud compute firewall-rules create")


def test_unanswered_request_fails_its_own_check_alone(emulated: EmulatedProject) -> None:
    emulated.emulator.faults.add(
        http_error(
            403,
            "forbidden",
            "Required 'compute.firewalls.list' permission",
            call="firewalls.list",
            times=None,
        )
    )
    done = doctor(emulated.project())
    assert statuses(done)["firewall"] == "unknown"
    assert "compute.firewalls.list" in check_of(done, "firewall")["why"]
    assert (done.exit_code, statuses(done)["zones"], statuses(done)["image"]) == (0, "ok", "ok")


def test_zones_without_the_gpu_fail(emulated: EmulatedProject) -> None:
    done = doctor(emulated.project(zones=["europe-west4-d"]))
    assert statuses(done)["zones"] == "fail"
    assert "europe-west4-a" in check_of(done, "zones")["fix"]
    assert statuses(done)["quota"] == "unknown"
    misspelt = doctor(emulated.project(zones=["us-central1-q"]))
    assert check_of(misspelt, "zones")["why"] == "there is no zone or region us-central1-q"


def test_os_login_of_the_project_is_reported(emulated: EmulatedProject) -> None:
    emulated.emulator.project_metadata["enable-oslogin"] = "TRUE"
    done = doctor(emulated.project())
    assert (done.exit_code, statuses(done)["os-login"]) == (0, "unknown")
    assert "roles/compute.osAdminLogin" in check_of(done, "os-login")["fix"]


@pytest.mark.parametrize("width", [80, 100])
def test_doctor_output_fits_the_terminal(
    emulated: EmulatedProject, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert width - 20 < max(map(len, doctor(emulated.project()).text.splitlines())) <= width


def gce(emulated: EmulatedProject, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> TaskResult:
    """The result of `doctor` with a Google Cloud project and without credentials."""

    def none() -> str:
        raise CloudAuthError(
            "no credentials for Google Cloud", why="File was not found.", fix=LOGIN_COMMAND
        )

    monkeypatch.setattr("provision.commands.doctor.cloud_checks.describe_credentials", none)
    return doctor(emulated.project(project="my-project-1", **settings))


def test_local_checks_run_without_credentials(
    emulated: EmulatedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = "us-docker.pkg.dev/my-project-1/repo/worker:1"
    done = gce(
        emulated,
        monkeypatch,
        ssh="iap",
        gpu="nvidia-tesla-v100",
        driver="latest",
        worker={"image": image},
    )
    assert done.exit_code == 1
    found = statuses(done)
    assert (found["credentials"], check_of(done, "credentials")["fix"]) == ("fail", LOGIN_COMMAND)
    assert {
        found[name] for name in ("zones", "quota", "image", "firewall", "registries", "egress")
    } == {"unknown"}
    assert (found["driver"], check_of(done, "driver")["fix"]) == (
        "warn",
        "set provision.driver: R580",
    )
    assert "us-docker.pkg.dev" in check_of(done, "registries")["what"]
    assert found["gcloud"] in {"ok", "fail"}
    assert emulated.emulator.call_ids() == []


def test_unknown_price_is_reported_as_unknown(emulated: EmulatedProject) -> None:
    assert statuses(doctor(emulated.project(zones=["everywhere"])))["price"] == "unknown"
    (emulated.folder / "p.json").write_text(json.dumps({"as_of": "2026-01-01", "regions": {}}))
    done = doctor(emulated.project(prices="p.json"))
    assert (statuses(done)["price"], done.exit_code) == ("unknown", 0)


def test_unreadable_price_list_fails_its_own_check(emulated: EmulatedProject) -> None:
    done = doctor(emulated.project(prices="none.json"))
    assert (statuses(done)["price"], done.exit_code) == ("fail", 1)


def test_machine_other_than_the_jobs_is_a_warning(emulated: EmulatedProject) -> None:
    done = doctor(
        emulated.project(machine_type="g2-standard-8", dataflow={"machine_type": "g2-standard-4"})
    )
    assert (statuses(done)["dataflow"], done.exit_code) == ("warn", 0)


def test_default_gpu_is_an_l4() -> None:
    assert Settings.from_levels([Level("test", {})]).gpu == "nvidia-l4"
