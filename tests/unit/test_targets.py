"""The hosts that a task acts on: invalid selections are refused before any request."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.commands.shared import host_access
from provision.commands.shared.targets import Targets
from provision.core.errors import UsageError
from provision.project.project import Project
from provision.settings import Settings


def project(folder: Path) -> Project:
    settings = Settings.model_validate({"hosts": {"desk": {"address": "local"}}})
    return Project(settings, folder / "state", folder, program_argv0="provision", environ={})


def test_host_with_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be given together"):
        Targets(host="dev", limit="d*")


@pytest.mark.parametrize("host", ["", " "])
def test_empty_host_is_refused(host: str) -> None:
    """`--host "$HOST"` with HOST unset must not act on the VM."""
    with pytest.raises(UsageError, match="--host names no host"):
        Targets(host=host)


def test_unknown_host_error_lists_known_hosts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no host named de v") as caught:
        host_access.resolve_hosts(project(tmp_path), Targets(host="de v"))
    assert caught.value.why == "known hosts: desk"
    assert caught.value.fix == "provision vm.create --name 'de v', or --host NAME"


def test_single_host_task_with_several_hosts_is_refused(tmp_path: Path) -> None:
    both = project(tmp_path)
    both.settings.hosts["other"] = both.settings.hosts["desk"]
    with pytest.raises(UsageError, match="acts on one host") as caught:
        host_access.resolve_host(both, Targets(limit="all"))
    assert (caught.value.why, caught.value.fix) == (
        "the pattern selects 2: desk, other",
        "--host NAME",
    )
