"""Only the used part of Google's client library is imported; all of it stays available."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORT = """
import sys
from provision.cloud.api.google_library import compute
compute().InstancesClient, compute().ZoneOperationsClient, compute().Instance
prefix = "google.cloud.compute_v1.services."
services = {name.split(".")[4] for name in sys.modules if name.startswith(prefix)}
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_only_used_services_are_imported() -> None:
    assert run("print(sorted(services))") == "['instances', 'zone_operations']\n"


@pytest.mark.slow
def test_later_import_of_the_package_is_complete() -> None:
    """A user's recipe may use the same library."""
    code = """
import google.cloud.compute_v1
from google.cloud import compute_v1
disks = google.cloud.compute_v1.DisksClient.__name__
print(disks, compute_v1.Operation.Status.DONE.name, len(compute_v1.__all__) > 1000)
print(compute_v1.InstancesClient is compute().InstancesClient, compute_v1.__version__ > "1.5")
"""
    assert run(code) == "DisksClient DONE True\nTrue True\n"


@pytest.mark.slow
def test_unknown_name_raises_attribute_error() -> None:
    assert (
        run("print(hasattr(compute(), 'NoSuchThing'), hasattr(compute(), 'InstancesClient'))")
        == "False True\n"
    )
