"""Connections dropped at any byte, in either direction: closed, reset or silent."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.core.errors import CommandTimeout, Unreachable
from provision.hosts.ssh.config import SshConfig
from provision.hosts.ssh.connection import connect
from provision.testing.network import Faults, Network, Relay

Fixture = Any

COMMAND = "cat | wc -c; echo err >&2"
INPUT = b"x" * 20_000


def run_command(server: Fixture, relay: Relay) -> tuple[int, bytes, bytes]:
    """Connect, run a command with input, close; return status, output and errors."""
    out, err = bytearray(), bytearray()
    transport = connect(server.host(port=relay.port), known_hosts=server.known_hosts, timeout_s=20)
    try:
        status = transport.send(
            COMMAND, [INPUT], on_stdout=out.extend, on_stderr=err.extend, timeout_s=20
        )
    finally:
        transport.close()
    return status, bytes(out).strip(), bytes(err)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1), up=st.booleans(), reset=st.booleans())
def test_connection_cut_at_any_byte_is_unreachable_or_done(
    sshd: Fixture, network: Network, where: float, up: bool, reset: bool
) -> None:
    relay = network.relay(("127.0.0.1", sshd.port))
    whole = (0, b"20000", b"err\n")
    assert run_command(sshd, relay) == whole
    total = relay.stats().bytes_up if up else relay.stats().bytes_down
    at = round(where * total)
    relay.cut(after_up=at if up else None, after_down=None if up else at, reset=reset)
    started = time.monotonic()
    try:
        result, reason = run_command(sshd, relay), ""
    except Unreachable as error:
        result, reason = None, error.why
    assert bool(reason) is (result is None)
    # a late drop loses only the closing messages
    assert result is None or (result == whole and at > 0.8 * total)
    assert time.monotonic() - started < 10


def test_output_before_connection_loss_is_delivered(
    sshd: Fixture, network: Network, collected: Fixture
) -> None:
    relay = network.relay(("127.0.0.1", sshd.port))
    transport = connect(sshd.host(port=relay.port), known_hosts=sshd.known_hosts)

    def cut(data: bytes) -> None:
        collected.out.extend(data)
        relay.drop()

    with pytest.raises(Unreachable, match="the connection was lost"):
        transport.exchange(
            "echo first; sleep 60; echo second", on_stdout=cut, on_stderr=print, timeout_s=30
        )
    assert bytes(collected.out) == b"first\n"
    with pytest.raises(Unreachable):
        transport.exchange("true", **collected.sinks, timeout_s=20)
    transport.close()


def test_silent_network_ends_at_time_limit(
    sshd: Fixture, network: Network, collected: Fixture
) -> None:
    relay = network.relay(("127.0.0.1", sshd.port))
    transport = connect(sshd.host(port=relay.port), known_hosts=sshd.known_hosts)
    relay.silence()
    started = time.monotonic()
    with pytest.raises(CommandTimeout):
        transport.exchange("true", b"x" * 10_000_000, **collected.sinks, timeout_s=1)
    assert time.monotonic() - started < 4
    started = time.monotonic()
    transport.close()
    assert time.monotonic() - started < 3


@pytest.mark.slow
def test_keepalive_detects_silent_network(
    sshd: Fixture, network: Network, collected: Fixture
) -> None:
    relay = network.relay(("127.0.0.1", sshd.port))
    config = SshConfig(text="Host *\n ServerAliveInterval 1\n")
    transport = connect(sshd.host(port=relay.port), known_hosts=sshd.known_hosts, ssh_config=config)
    relay.silence()
    started = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        transport.exchange("sleep 60", **collected.sinks, timeout_s=60)
    assert 3 < time.monotonic() - started < 10
    assert "no answer to 3 keep-alive requests" in caught.value.why
    transport.close()


@pytest.mark.slow
def test_keepalive_keeps_quiet_command_running(sshd: Fixture, collected: Fixture) -> None:
    config = SshConfig(text="Host *\n ServerAliveInterval 1\n")
    transport = connect(sshd.host(), known_hosts=sshd.known_hosts, ssh_config=config)
    assert transport.exchange("sleep 5; echo done", **collected.sinks, timeout_s=30) == 0
    transport.close()


def test_initially_silent_network_times_out(sshd: Fixture, network: Network) -> None:
    relay = network.relay(("127.0.0.1", sshd.port), faults=Faults(silent=True))
    started = time.monotonic()
    with pytest.raises(Unreachable):
        connect(sshd.host(port=relay.port), known_hosts=sshd.known_hosts, timeout_s=1)
    assert time.monotonic() - started < 4


def test_new_connection_works_after_cut(sshd: Fixture, network: Network) -> None:
    relay = network.relay(("127.0.0.1", sshd.port))
    relay.cut(after_down=2000)
    with pytest.raises(Unreachable):
        run_command(sshd, relay)
    relay.heal()
    assert run_command(sshd, relay)[0] == 0
