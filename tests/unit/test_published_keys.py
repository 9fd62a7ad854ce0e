"""Host keys that a VM publishes: where they are read, how often, and which are accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from provision.cloud.api.protocol import SerialOutput
from provision.cloud.refusal import CloudRefused, Refusal
from provision.core.model import Vm
from provision.hosts.host_keys import HostKey
from provision.project.host_key_pinning import ATTRIBUTES_PAUSE_S, PublishedKeys
from provision.project.records import key_alias

ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhAqcVaWAMCSKt6NHhRBhFcyISvgC0pbZAKHPHg2zxL"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICs4zTd2SBmzFQwbYqAShqsdwbvZo4TzuxFCzVSm9BYD"
VM = Vm(
    name="dev",
    zone="us-central1-a",
    status="RUNNING",
    machine_type="g2-standard-8",
    instance_id="4711",
)


def printed(line: str, fingerprint: str = "") -> str:
    return f"provision-host-key {line} {fingerprint or HostKey.parse(line).fingerprint}\n"


def refused(status: int) -> CloudRefused:
    return CloudRefused("no", refusal=Refusal(code="forbidden", message="no", http_status=status))


@dataclass
class Cloud:
    """A cloud that returns what a test sets, and counts the requests."""

    attributes: Mapping[str, str] | CloudRefused = field(default_factory=dict)
    console: str = ""
    asked: list[str] = field(default_factory=list)

    def guest_attributes(self, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        self.asked.append(f"{zone}/{name} {namespace}")
        if isinstance(self.attributes, CloudRefused):
            raise self.attributes
        return self.attributes

    def serial_output(self, name: str, zone: str, *, start: int = 0) -> SerialOutput:
        return SerialOutput(self.console[start:], len(self.console))


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def look(cloud: Cloud, clock: Callable[[], float] | None = None, **more: Any) -> list[str]:
    return [
        key.line
        for key in PublishedKeys(cast(Any, cloud), VM, clock=clock or Clock(), **more).fetch()
    ]


def test_guest_attributes_are_preferred_to_console() -> None:
    kind, blob = ED.split()
    assert look(Cloud({kind: blob}, printed(OTHER))) == [ED]


def test_console_is_read_without_attributes() -> None:
    assert look(Cloud({}, f"[   12.3] sh[417]: {printed(ED)}login: ")) == [ED]


def test_console_is_read_when_attributes_are_forbidden() -> None:
    assert look(Cloud(refused(403), printed(ED))) == [ED]


def test_other_refusals_are_raised() -> None:
    with pytest.raises(CloudRefused):
        look(Cloud(refused(400)))


def test_last_key_of_a_type_is_used() -> None:
    assert look(Cloud({}, printed(ED) + "rebooted\r\n" + printed(OTHER))) == [OTHER]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "provision-host-key ssh-ed25519: not published as a guest attribute\n",
        printed(ED).rstrip("\n"),  # the rest of the line is not there yet
        printed(ED, HostKey.parse(OTHER).fingerprint),
        printed(ED, "SHA256:short"),
        printed(ED).replace("ssh-ed25519", "ssh-rsa"),
        printed(ED).replace("AAAA", "####"),
    ],
)
def test_incomplete_or_false_console_line_is_ignored(text: str) -> None:
    assert look(Cloud({}, text)) == []


def test_console_line_without_fingerprint_is_accepted() -> None:
    assert look(Cloud({}, printed(ED, "-"))) == [ED]


def test_console_line_in_two_pieces_is_joined() -> None:
    cloud = Cloud()
    publication = PublishedKeys(cast(Any, cloud), VM, clock=Clock())
    text = printed(ED)
    for cut in (30, len(text)):
        cloud.console = text[:cut]
        found = publication.fetch()
    assert [key.line for key in found] == [ED]


def test_invalid_attribute_is_ignored() -> None:
    assert look(Cloud({"ssh-rsa": "garbage", **dict([ED.split()])})) == [ED]


def test_attributes_are_requested_at_most_ten_times_a_minute() -> None:
    cloud, clock = Cloud(), Clock()
    publication = PublishedKeys(cast(Any, cloud), VM, clock=clock)
    for _ in range(600):
        publication.fetch()
        clock.now_s += 0.1
    assert len(cloud.asked) == 10
    assert set(cloud.asked) == {"us-central1-a/dev hostkeys/"}
    assert 60 / ATTRIBUTES_PAUSE_S < 10


def test_pin_alias_is_the_instance_id() -> None:
    assert key_alias("4711") == "compute.4711"
