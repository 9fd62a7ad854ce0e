"""All traffic of all emulators of a test, validated against the discovery document."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from provision.testing import background
from provision.testing.compute import Call, ComputeEmulator
from provision.testing.compute.discovery import discovery


@dataclass
class Traffic:
    """The requests and replies of a test."""

    emulators: list[ComputeEmulator] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """Calls of mocks in other processes."""
    sends_invalid_requests: bool = False
    """True when the test sends invalid requests; replies are validated all the same."""

    def faults(self) -> list[str]:
        """Return what is invalid in any call."""
        judge = discovery().judge_reply if self.sends_invalid_requests else discovery().judge
        calls = [*self.calls, *(call for emulator in self.emulators for call in emulator.calls)]
        return [fault for call in calls for fault in judge(call)] if calls else []


@contextmanager
def validated(patch: pytest.MonkeyPatch) -> Iterator[Traffic]:
    """Validate every emulator that starts here, or as a background mock that this process ends."""
    traffic = Traffic()
    start, end = ComputeEmulator.start, background._end

    def noted(emulator: ComputeEmulator) -> ComputeEmulator:
        traffic.emulators.append(emulator)
        return start(emulator)

    def asked(folder: Any, record: Mapping[str, Any]) -> None:
        calls = f"{record['compute_endpoint']}/emulator/calls"
        # A mock that hangs or is gone does not answer: tests end such mocks, too.
        with suppress(OSError, ValueError), urllib.request.urlopen(calls, timeout=5) as answer:
            traffic.calls += [Call(**call) for call in json.load(answer)["calls"]]
        end(folder, record)

    patch.setattr(ComputeEmulator, "start", noted)
    patch.setattr(background, "_end", asked)
    yield traffic
    if faults := traffic.faults():
        pytest.fail("invalid by the discovery document:\n" + "\n".join(faults), pytrace=False)
