"""The pytest plugin: a mock host, a mock cloud and the Compute Engine emulator as fixtures.

def test_my_recipe(mock_cos_host):
    from provision.testing import converge
    report = converge(mock_cos_host, my_recipe())
    assert not report.failed
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from provision.testing.compute import ComputeEmulator
    from provision.testing.mock_cloud import MockCloud
    from provision.testing.mock_host import MockHost


@pytest.fixture
def mock_cos_host() -> Iterator[MockHost]:
    """A running mock host with one L4, freshly booted: no driver, no mounts, no containers."""
    from provision.testing.mock_host import MockHost

    with MockHost() as host:
        yield host


@pytest.fixture
def mock_cloud(tmp_path: Path) -> Iterator[MockCloud]:
    """A running Compute Engine emulator; every instance that is inserted becomes a mock host."""
    from provision.testing.mock_cloud import MockCloud

    with MockCloud(tmp_path / "mock-cloud") as cloud:
        yield cloud


@pytest.fixture
def compute_emulator() -> Iterator[ComputeEmulator]:
    """A running Compute Engine emulator without hosts, on a clock that only a test moves.

    With the extra `provision-gpu[testing]` the test fails when a request or a reply violates
    Compute Engine's discovery document. Call `compute_emulator.calls.clear()` after a request that
    is invalid on purpose.
    """
    from provision.testing.compute import ComputeEmulator, SimulatedClock, discovery

    with ComputeEmulator(clock=SimulatedClock()) as emulator:
        yield emulator
        faults = discovery.discovery().judge_all(emulator.calls) if discovery.available() else []
    if faults:
        pytest.fail(
            "not as Compute Engine's discovery document has it:\n" + "\n".join(faults),
            pytrace=False,
        )
