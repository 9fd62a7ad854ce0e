"""An emulator for each test; all its traffic is validated against the discovery document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from provision.cloud.api.gce import GceCloud
from provision.core.model import VmSpec
from provision.testing.compute import ComputeEmulator, NullBackend, SimulatedClock
from tests.emulator.discovery_check import Traffic, validated
from tests.emulator.google_client import Google
from tests.specs import T4, vm_spec


@pytest.fixture(autouse=True)
def traffic() -> Iterator[Traffic]:
    """Validate the traffic of all emulators of a test when it ends."""
    with pytest.MonkeyPatch.context() as patch, validated(patch) as seen:
        yield seen


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def hosts() -> NullBackend:
    return NullBackend(port=2222)


@pytest.fixture
def emulator(hosts: NullBackend, clock: SimulatedClock) -> Iterator[ComputeEmulator]:
    with ComputeEmulator(hosts, clock=clock) as running:
        yield running


@pytest.fixture
def free_emulator(emulator: ComputeEmulator, traffic: Traffic) -> ComputeEmulator:
    """Return an emulator whose requests are not validated: the test sends invalid ones."""
    traffic.sends_invalid_requests = True
    return emulator


@pytest.fixture
def cloud(emulator: ComputeEmulator, clock: SimulatedClock) -> Iterator[GceCloud]:
    client = GceCloud("demo", emulator.endpoint, now=clock.now, sleep=clock.sleep)
    yield client
    client.close()


@pytest.fixture
def google(emulator: ComputeEmulator) -> Iterator[Google]:
    """Return Google's client library, connected to the emulator."""
    clients = Google(emulator)
    yield clients
    clients.close()


@pytest.fixture
def make_spec() -> Callable[..., VmSpec]:
    def make(**changed: Any) -> VmSpec:
        return vm_spec(**{**T4, "metadata": {"enable-guest-attributes": "TRUE"}, **changed})

    return make
