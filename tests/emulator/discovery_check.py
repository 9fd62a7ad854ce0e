"""All traffic of all emulators of a test, judged by the discovery document when the test ends."""

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
    """What went over the wires of a test."""

    emulators: list[ComputeEmulator] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """Of mocks in other processes."""
    wrong_on_purpose: bool = False
    """Requests are not judged: the test sends bad ones. Replies still are."""

    def faults(self) -> list[str]:
        """What is wrong with any of it."""
        judge = discovery().judge_reply if self.wrong_on_purpose else discovery().judge
        calls = [*self.calls, *(call for emulator in self.emulators for call in emulator.calls)]
        return [fault for call in calls for fault in judge(call)] if calls else []


@contextmanager
def judged(patch: pytest.MonkeyPatch) -> Iterator[Traffic]:
    """Judge every emulator that starts, in this process or as a background mock that this process ends."""
    traffic = Traffic()
    start, end = ComputeEmulator.start, background._end

    def noted(emulator: ComputeEmulator) -> ComputeEmulator:
        traffic.emulators.append(emulator)
        return start(emulator)

    def asked(folder: Any, record: Mapping[str, Any]) -> None:
        calls = f"{record['compute_endpoint']}/emulator/calls"
        # A mock that hangs or is gone already tells nothing: tests end such ones, too.
        with suppress(OSError, ValueError), urllib.request.urlopen(calls, timeout=5) as answer:
            traffic.calls += [Call(**call) for call in json.load(answer)["calls"]]
        end(folder, record)

    patch.setattr(ComputeEmulator, "start", noted)
    patch.setattr(background, "_end", asked)
    yield traffic
    if faults := traffic.faults():
        pytest.fail("not as the discovery document has it:\n" + "\n".join(faults), pytrace=False)
