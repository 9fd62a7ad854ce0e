"""What a VM has published about itself: where it is looked for, how often, and what of it is believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from provision.cloud.api.protocol import SerialOutput
from provision.cloud.refusal import CloudRefused, Refusal
from provision.core.model import Vm
from provision.hosts.known_hosts import HostKey
from provision.project.host_keys import ATTRIBUTES_PAUSE_S, PublishedKeys
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
    """A cloud that answers with what a test puts into it, and counts."""

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


def test_guest_attributes_come_first() -> None:
    kind, blob = ED.split()
    assert look(Cloud({kind: blob}, printed(OTHER))) == [ED]


def test_the_console_speaks_where_there_are_no_attributes() -> None:
    assert look(Cloud({}, f"[   12.3] sh[417]: {printed(ED)}login: ")) == [ED]


def test_who_may_not_read_attributes_reads_the_console() -> None:
    assert look(Cloud(refused(403), printed(ED))) == [ED]


def test_any_other_refusal_is_told() -> None:
    with pytest.raises(CloudRefused):
        look(Cloud(refused(400)))


def test_the_last_key_of_a_type_counts() -> None:
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
def test_a_line_that_is_not_whole_or_not_true_is_not_believed(text: str) -> None:
    assert look(Cloud({}, text)) == []


def test_without_ssh_keygen_on_the_host_there_is_no_fingerprint() -> None:
    assert look(Cloud({}, printed(ED, "-"))) == [ED]


def test_a_line_that_comes_in_two_pieces_is_read_whole() -> None:
    cloud = Cloud()
    publication = PublishedKeys(cast(Any, cloud), VM, clock=Clock())
    text = printed(ED)
    for cut in (30, len(text)):
        cloud.console = text[:cut]
        found = publication.fetch()
    assert [key.line for key in found] == [ED]


def test_an_attribute_that_is_no_key_is_passed_over() -> None:
    assert look(Cloud({"ssh-rsa": "garbage", **dict([ED.split()])})) == [ED]


def test_attributes_are_asked_for_ten_times_a_minute_at_most() -> None:
    cloud, clock = Cloud(), Clock()
    publication = PublishedKeys(cast(Any, cloud), VM, clock=clock)
    for _ in range(600):
        publication.fetch()
        clock.now_s += 0.1
    assert len(cloud.asked) == 10
    assert set(cloud.asked) == {"us-central1-a/dev hostkeys/"}
    assert 60 / ATTRIBUTES_PAUSE_S < 10


def test_the_pin_is_that_of_the_instance() -> None:
    assert key_alias("4711") == "compute.4711"
