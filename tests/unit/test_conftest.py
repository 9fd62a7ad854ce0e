"""The guards of tests/conftest.py: network, home, sleep and skipped lab tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.mark.parametrize("address", ["192.0.2.1", "169.254.169.254", "2001:db8::1"])
def test_connection_to_another_machine_is_refused(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as client:
        with pytest.raises(RuntimeError, match="may not connect"):
            client.connect((address, 80))
        with pytest.raises(RuntimeError, match="may not connect"):
            client.connect_ex((address, 80))


def test_lookup_of_a_foreign_name_is_refused() -> None:
    with pytest.raises(RuntimeError, match="may not look up"):
        socket.getaddrinfo("metadata.google.internal", 80)
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("nowhere.invalid", 80)


def test_connection_to_loopback_is_allowed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(("localhost", server.getsockname()[1])) as client,
    ):
        assert client.getpeername() == server.getsockname()


def test_sleep_fails_a_unit_test() -> None:
    with pytest.raises(pytest.fail.Exception, match="hand the code a clock"):
        time.sleep(0)


def test_home_is_an_empty_folder(clean_environment: Path) -> None:
    assert Path.home() == clean_environment
    assert list(clean_environment.iterdir()) == []
    assert [
        name
        for name in os.environ
        if name.startswith(("GOOGLE_", "INVOKE_", "SSH_", "XDG_"))
        or name.lower().endswith("_proxy")
    ] == []


SKIPPED_TEST = "import pytest\n\ndef test_it() -> None:\n    pytest.skip('no dockerd')\n"
SKIPPED_MODULE = "import pytest\n\npytest.skip('no dockerd', allow_module_level=True)\n"
EXPECTED_FAILURE = (
    "import pytest\n\n@pytest.mark.xfail\ndef test_it() -> None:\n    raise AssertionError\n"
)


def run_tests(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a test module in `folder` below the tests, in another pytest."""
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(source)
    shutil.copy(CONFTEST, folder.parent / "conftest.py")
    markers = ["-o", "markers=lab: x", "-o", "markers=gpu: x"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *markers,
        "--rootdir",
        str(folder.parent),
        str(folder),
    ]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("source", [SKIPPED_TEST, SKIPPED_MODULE])
def test_skipped_lab_test_fails_where_the_lab_is_required(source: str, tmp_path: Path) -> None:
    done = run_tests(tmp_path / "tests" / "lab", source, PROVISION_LAB_REQUIRED="1")
    assert done.returncode != 0
    assert "skipped although the lab is required" in done.stdout
    assert "no dockerd" in done.stdout


def test_skipped_lab_test_is_skipped_elsewhere(tmp_path: Path) -> None:
    assert "1 skipped" in run_tests(tmp_path / "tests" / "lab", SKIPPED_TEST).stdout


@pytest.mark.parametrize(("folder", "source"), [("unit", SKIPPED_TEST), ("lab", EXPECTED_FAILURE)])
def test_only_skipped_lab_tests_become_failures(folder: str, source: str, tmp_path: Path) -> None:
    assert (
        run_tests(tmp_path / "tests" / folder, source, PROVISION_LAB_REQUIRED="1").returncode == 0
    )
