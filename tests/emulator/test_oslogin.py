"""OS Login through google-cloud-os-login: account of the credentials, keys, user names."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.api.oslogin_client import fetch_account, import_key
from provision.cloud.refusal import CloudRefused
from provision.core.errors import CloudAuthError
from provision.testing.compute import ComputeEmulator, Fault, FaultKind, http_error
from provision.testing.compute.oslogin import username

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhAqcVaWAMCSKt6NHhRBhFcyISvgC0pbZAKHPHg2zxL provision"
START_S = 1_790_000_000
ENDS_S = START_S + 3600


def test_key_is_imported_for_the_credentials_account(
    emulator: ComputeEmulator, cloud: GceCloud
) -> None:
    assert cloud.add_login_key(KEY, ENDS_S).user == "me_example_com"
    assert emulator.call_ids() == ["userinfo", "oslogin.users.importSshPublicKey"]
    assert emulator.logins.keys == (("me_example_com", KEY),)
    assert emulator.calls[-1].query["projectId"] == "demo"


def test_second_import_keeps_one_key(emulator: ComputeEmulator, cloud: GceCloud) -> None:
    cloud.add_login_key(KEY, ENDS_S)
    cloud.add_login_key(KEY, ENDS_S)
    assert len(emulator.logins.keys) == 1


def test_expired_key_is_not_accepted(emulator: ComputeEmulator, cloud: GceCloud) -> None:
    cloud.add_login_key(KEY, ENDS_S)
    emulator.clock.advance(3599)
    assert len(emulator.logins.keys) == 1
    emulator.clock.advance(1)
    assert len(emulator.logins.keys) == 0


def test_existing_key_gets_the_new_expiry(emulator: ComputeEmulator, cloud: GceCloud) -> None:
    """Importing alone leaves the old one."""
    login = cloud.add_login_key(KEY, ENDS_S)
    emulator.calls.clear()
    assert cloud.add_login_key(KEY, ENDS_S + 60) == replace(login, expires_s=ENDS_S + 60)
    assert emulator.call_ids() == [
        "userinfo",
        "oslogin.users.importSshPublicKey",
        "oslogin.users.sshPublicKeys.patch",
    ]
    assert emulator.calls[-1].query["updateMask"] == "expirationTimeUsec"
    emulator.clock.advance(3630)
    assert len(emulator.logins.keys) == 1


def test_second_removal_of_a_key_returns_false(emulator: ComputeEmulator, cloud: GceCloud) -> None:
    login = cloud.add_login_key(KEY, ENDS_S)
    assert cloud.remove_login_key(login.key)
    assert emulator.logins.keys == ()
    assert not cloud.remove_login_key(login.key)


def test_expiry_in_the_past_is_refused(cloud: GceCloud) -> None:
    with pytest.raises(CloudRefused, match="did not take the key"):
        cloud.add_login_key(KEY, START_S - 1)


def test_service_account_email_sends_no_request(emulator: ComputeEmulator, cloud: GceCloud) -> None:
    cloud.client._credentials = SimpleNamespace(
        service_account_email="ci@demo.iam.gserviceaccount.com"
    )
    assert fetch_account(cloud.client) == "ci@demo.iam.gserviceaccount.com"
    assert emulator.call_ids() == []
    assert username("ci@demo.iam.gserviceaccount.com").startswith("sa_")


def test_profile_of_another_account_is_refused(cloud: GceCloud) -> None:
    with pytest.raises(CloudAuthError, match="OS Login did not take the key"):
        import_key(cloud.client, "you@example.com", KEY, ENDS_S)


def test_invalid_key_is_refused(cloud: GceCloud) -> None:
    with pytest.raises(CloudRefused, match="OS Login did not take the key"):
        cloud.add_login_key("nonsense", ENDS_S)


def test_credentials_without_email_raise_auth_error(
    emulator: ComputeEmulator, cloud: GceCloud
) -> None:
    emulator.faults.add(
        Fault(
            kind=FaultKind.HTTP,
            call="userinfo",
            http_status=403,
            code="forbidden",
            message="no scope",
        )
    )
    with pytest.raises(CloudAuthError, match="account of the credentials is unknown") as caught:
        cloud.add_login_key(KEY, ENDS_S)
    assert "--scopes=openid,https://www.googleapis.com/auth/userinfo.email" in caught.value.fix


def test_temporary_os_login_errors_are_retried(emulator: ComputeEmulator, cloud: GceCloud) -> None:
    emulator.faults.add(http_error(503, "backendError", "try again", call="oslogin.*", times=2))
    emulator.faults.add(Fault(kind=FaultKind.RESET_BEFORE, call="userinfo", times=1))
    assert cloud.add_login_key(KEY, ENDS_S).user == "me_example_com"
    assert emulator.call_ids().count("oslogin.users.importSshPublicKey") == 3


def test_project_metadata_is_fetched(emulator: ComputeEmulator, cloud: GceCloud) -> None:
    assert cloud.project_metadata() == {}
    emulator.project_metadata["enable-oslogin"] = "TRUE"
    assert cloud.project_metadata() == {"enable-oslogin": "TRUE"}
