"""OS Login: metadata levels, organisation policy, user names of login profiles."""

from __future__ import annotations

from typing import Any

import pytest

from provision.cloud.api import oslogin
from provision.cloud.api.request_bodies import standard_metadata
from provision.cloud.refusal import Refusal
from provision.cloud.refusal_table import refusal_error
from provision.core.errors import CloudAuthError

LINUX = {"username": "me_example_com", "operatingSystemType": "LINUX"}


@pytest.mark.parametrize(
    ("instance", "project", "on"),
    [
        ({}, {}, False),
        ({}, {"enable-oslogin": "TRUE"}, True),
        ({"enable-oslogin": "FALSE"}, {"enable-oslogin": "TRUE"}, False),
        ({"enable-oslogin": "true"}, {"enable-oslogin": "FALSE"}, True),
        ({"enable-oslogin": "1"}, {}, True),
        ({"enable-oslogin": ""}, {"enable-oslogin": "TRUE"}, False),
    ],
)
def test_instance_metadata_overrides_the_project(
    instance: dict[str, str], project: dict[str, str], *, on: bool
) -> None:
    assert oslogin.is_enabled(instance, project) is on


@pytest.mark.parametrize(
    ("accounts", "name"),
    [
        ([LINUX], "me_example_com"),
        (
            [{"username": "win", "operatingSystemType": "WINDOWS", "primary": True}, LINUX],
            "me_example_com",
        ),
        ([LINUX, {"username": "first", "primary": True}], "first"),
        ([{"username": "sa_1234567890"}], "sa_1234567890"),
    ],
)
def test_username_is_that_of_the_primary_linux_account(
    accounts: list[dict[str, Any]], name: str
) -> None:
    assert oslogin.username({"posixAccounts": accounts}, "me@example.com") == name


@pytest.mark.parametrize(
    "profile",
    [
        {},
        {"posixAccounts": []},
        {"posixAccounts": [{"operatingSystemType": "WINDOWS", "username": "x"}]},
    ],
)
def test_profile_without_linux_account_raises_auth_error(profile: dict[str, Any]) -> None:
    with pytest.raises(CloudAuthError, match="no user name") as caught:
        oslogin.username(profile, "me@example.com")
    assert caught.value.where == "me@example.com"


def test_os_login_policy_is_recognised_in_the_refusal() -> None:
    def error(message: str) -> Any:
        return refusal_error(
            "no",
            Refusal(code="conditionNotMet", message=message, http_status=412),
            where="z/dev",
            project="p",
        )

    assert oslogin.is_required_by_policy(
        error("Constraint constraints/compute.requireOsLogin violated for project p.")
    )
    assert not oslogin.is_required_by_policy(
        error("Constraint constraints/compute.vmExternalIpAccess violated for project p.")
    )


def test_metadata_with_os_login_has_no_key() -> None:
    items = standard_metadata(user="provision", public_key="ssh-ed25519 AAAA", os_login=True)
    assert items["enable-oslogin"] == "TRUE"
    assert "ssh-keys" not in items
    assert (
        standard_metadata(user="provision", public_key="ssh-ed25519 AAAA")["enable-oslogin"]
        == "FALSE"
    )
