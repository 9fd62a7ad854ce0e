"""An emulator for each test, whose whole traffic is validated against the Compute v1 discovery document when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from provision.cloud.api.gce import GceCloud
from provision.core.model import VmSpec
from provision.testing.compute import ComputeEmulator, NullBackend, SimulatedClock
from tests.emulator.discovery_check import Traffic, judged
from tests.emulator.google_client import Google
from tests.specs import T4, vm_spec


@pytest.fixture(autouse=True)
def traffic() -> Iterator[Traffic]:
    """Whatever is said to whatever emulator of a test is valid."""
    with pytest.MonkeyPatch.context() as patch, judged(patch) as seen:
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
    """An emulator that is sent requests that are wrong on purpose."""
    traffic.wrong_on_purpose = True
    return emulator


@pytest.fixture
def cloud(emulator: ComputeEmulator, clock: SimulatedClock) -> Iterator[GceCloud]:
    client = GceCloud("demo", emulator.endpoint, now=clock.now, sleep=clock.sleep)
    yield client
    client.close()


@pytest.fixture
def google(emulator: ComputeEmulator) -> Iterator[Google]:
    """Google's client library, speaking to the emulator."""
    clients = Google(emulator)
    yield clients
    clients.close()


@pytest.fixture
def make_spec() -> Callable[..., VmSpec]:
    def make(**changed: Any) -> VmSpec:
        return vm_spec(**{**T4, "metadata": {"enable-guest-attributes": "TRUE"}, **changed})

    return make
