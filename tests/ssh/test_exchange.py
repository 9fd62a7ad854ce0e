"""The contract of every transport: bytes, exit statuses, time limits, lost connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import paramiko
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.core.errors import CommandTimeout, HostError, Unreachable
from provision.core.model import Transport
from provision.core.shell import quote
from provision.hosts.ssh.connection import connect
from provision.hosts.ssh.transport import COMMAND_MAX_BYTES, SshTransport
from provision.testing.network import Network

Fixture = Any


def test_both_streams_and_status_are_returned(transport: Transport, collected: Fixture) -> None:
    assert (
        transport.exchange("echo out; echo err >&2; exit 3", **collected.sinks, timeout_s=20) == 3
    )
    assert (bytes(collected.out), bytes(collected.err)) == (b"out\n", b"err\n")


@pytest.mark.parametrize("status", [0, 1, 2, 126, 127, 255])
def test_every_exit_status_is_returned(
    transport: Transport, collected: Fixture, status: int
) -> None:
    assert transport.exchange(f"exit {status}", **collected.sinks, timeout_s=20) == status


@pytest.mark.parametrize(("name", "status"), [("TERM", 143), ("KILL", 137), ("INT", 130)])
def test_signal_gives_128_plus_its_number(
    transport: Transport, collected: Fixture, name: str, status: int
) -> None:
    assert (
        transport.exchange(
            f"exec sh -c 'kill -{name} $$; sleep 5'", **collected.sinks, timeout_s=20
        )
        == status
    )


def test_exchange_keeps_input_open_until_command_ends(
    transport: Transport, collected: Fixture
) -> None:
    command = (
        "exec 3<&0; read line; echo $line; { cat <&3; echo ended; } & sleep 0.4; kill $!; echo done"
    )
    assert (
        transport.exchange(
            f"exec sh -c {quote(command)}", b"first\n", **collected.sinks, timeout_s=20
        )
        == 0
    )
    assert bytes(collected.out) == b"first\ndone\n"


def test_send_closes_input(transport: Transport, collected: Fixture) -> None:
    assert transport.send("cat; echo end", [b"a", b"", b"bc"], **collected.sinks, timeout_s=20) == 0
    assert bytes(collected.out) == b"abcend\n"


def test_slow_input_does_not_delay_output(transport: Transport, collected: Fixture) -> None:
    answered = threading.Event()

    def yield_slowly() -> Iterator[bytes]:
        yield b"first\n"
        assert answered.wait(20)
        yield b"second\n"

    def listen(data: bytes) -> None:
        collected.out.extend(data)
        answered.set()

    assert (
        transport.send(
            "cat; echo end", yield_slowly(), on_stdout=listen, on_stderr=print, timeout_s=30
        )
        == 0
    )
    assert bytes(collected.out) == b"first\nsecond\nend\n"


def test_command_ends_although_input_never_arrives(
    transport: Transport, collected: Fixture
) -> None:
    never = threading.Event()

    def yield_nothing() -> Iterator[bytes]:
        never.wait()
        yield b""

    assert (
        transport.send("echo done; exit 4", yield_nothing(), **collected.sinks, timeout_s=20) == 4
    )
    never.set()
    assert bytes(collected.out) == b"done\n"


def test_megabyte_of_input_arrives_completely(transport: Transport, collected: Fixture) -> None:
    data = bytes(range(256)) * 4096
    assert transport.exchange(f"head -c {len(data)}", data, **collected.sinks, timeout_s=30) == 0
    assert bytes(collected.out) == data


def test_echo_of_input_larger_than_windows_does_not_deadlock(
    transport: Transport, collected: Fixture
) -> None:
    chunks = [bytes([number]) * 1_000_000 for number in range(24)]
    assert transport.send("cat", chunks, **collected.sinks, timeout_s=60) == 0
    assert bytes(collected.out) == b"".join(chunks)


def test_command_may_ignore_its_input(transport: Transport, collected: Fixture) -> None:
    assert (
        transport.send("exec 0<&-; echo done", [b"x" * 5_000_000], **collected.sinks, timeout_s=30)
        == 0
    )
    assert bytes(collected.out) == b"done\n"


def test_flood_on_stderr_does_not_delay_stdout(transport: Transport, collected: Fixture) -> None:
    command = "head -c 40000000 /dev/zero >&2; echo done"
    assert transport.exchange(command, **collected.sinks, timeout_s=60) == 0
    assert (len(collected.err), bytes(collected.out)) == (40_000_000, b"done\n")


def test_output_arrives_while_command_runs(transport: Transport) -> None:
    seen: list[float] = []
    transport.exchange(
        "for i in 1 2 3 4; do echo $i; sleep 0.3; done",
        on_stdout=lambda _: seen.append(time.monotonic()),
        on_stderr=print,
        timeout_s=20,
    )
    assert len(seen) == 4
    assert all(later - earlier > 0.1 for earlier, later in pairwise(seen))


def test_endless_command_times_out(transport: Transport, collected: Fixture) -> None:
    started = time.monotonic()
    with pytest.raises(CommandTimeout, match=r"no end after 0\.5 s"):
        transport.exchange("echo started; sleep 60", **collected.sinks, timeout_s=0.5)
    assert time.monotonic() - started < 5
    assert bytes(collected.out) == b"started\n"


@pytest.mark.parametrize("command", ["yes", "yes >&2"])
def test_endlessly_printing_command_times_out(transport: Transport, command: str) -> None:
    seen: list[int] = []
    started = time.monotonic()
    with pytest.raises(CommandTimeout):
        transport.exchange(
            command,
            on_stdout=lambda data: seen.append(len(data)),
            on_stderr=lambda data: seen.append(len(data)),
            timeout_s=0.5,
        )
    assert time.monotonic() - started < 5
    assert sum(seen) > 100_000


def test_flood_on_one_stream_does_not_starve_the_other(transport: Transport) -> None:
    seen: list[bytes] = []
    with pytest.raises(CommandTimeout):
        transport.exchange(
            "echo here >&2; yes", on_stdout=lambda data: None, on_stderr=seen.append, timeout_s=1
        )
    assert b"".join(seen) == b"here\n"


def test_connection_works_after_timeout(transport: Transport, collected: Fixture) -> None:
    with pytest.raises(CommandTimeout):
        transport.exchange("sleep 60", **collected.sinks, timeout_s=0.3)
    assert transport.exchange("echo alive", **collected.sinks, timeout_s=20) == 0
    assert bytes(collected.out) == b"alive\n"


def test_close_from_another_thread_ends_running_command(
    transport: Transport, collected: Fixture
) -> None:
    closer = threading.Timer(0.5, transport.close)
    closer.start()
    started = time.monotonic()
    with pytest.raises(Unreachable, match="closed"):
        transport.exchange("sleep 60", **collected.sinks, timeout_s=60)
    assert 0.4 < time.monotonic() - started < 3
    closer.join()


def test_closed_transport_refuses_commands(transport: Transport, collected: Fixture) -> None:
    transport.close()
    transport.close()
    with pytest.raises(Unreachable):
        transport.exchange("true", **collected.sinks, timeout_s=20)


def test_failing_sink_ends_exchange_but_not_connection(
    transport: Transport, collected: Fixture
) -> None:
    def full(data: bytes) -> None:
        raise BrokenPipeError(len(data))  # the reader of our output is gone, as with `| head`

    with pytest.raises(BrokenPipeError):
        transport.exchange("echo x; sleep 60", on_stdout=full, on_stderr=full, timeout_s=20)
    assert transport.exchange("echo y", **collected.sinks, timeout_s=20) == 0


def test_threads_share_one_connection(transport: Transport) -> None:
    results: dict[int, tuple[int, bytes]] = {}

    def work(number: int) -> None:
        out = bytearray()
        results[number] = (
            transport.exchange(
                f"sleep 0.2; echo {number}; exit {number}",
                on_stdout=out.extend,
                on_stderr=print,
                timeout_s=30,
            ),
            bytes(out),
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: (number, b"%d\n" % number) for number in range(8)}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(out=st.binary(max_size=4000), err=st.binary(max_size=4000), status=st.integers(0, 255))
def test_any_output_arrives_byte_for_byte(
    transport: Transport, out: bytes, err: bytes, status: int
) -> None:
    seen_out, seen_err = bytearray(), bytearray()
    command = (
        f"dd bs=1 count={len(out)} 2>/dev/null; "
        f"dd bs=1 count={len(err)} >&2 2>/dev/null; exit {status}"
    )
    assert (
        transport.exchange(
            command, out + err, on_stdout=seen_out.extend, on_stderr=seen_err.extend, timeout_s=30
        )
        == status
    )
    assert (bytes(seen_out), bytes(seen_err)) == (out, err)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(
        st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=300
    )
)
def test_quoted_word_survives_login_shell(transport: Transport, text: str) -> None:
    seen = bytearray()
    assert (
        transport.exchange(
            f"printf %s {quote(text)}", on_stdout=seen.extend, on_stderr=print, timeout_s=30
        )
        == 0
    )
    assert bytes(seen) == text.encode()


# --- over SSH only --------------------------------------------------------------------------------


def test_too_long_command_line_is_refused_before_sending(sshd: Fixture, collected: Fixture) -> None:
    transport = connect(sshd.host(), known_hosts=sshd.known_hosts)
    filler = "x" * (COMMAND_MAX_BYTES - len("echo "))
    assert transport.exchange("echo " + filler, **collected.sinks, timeout_s=20) == 0
    assert len(collected.out) == len(filler) + 1
    with pytest.raises(ValueError, match="on standard input"):
        transport.exchange("echo x" + filler, **collected.sinks, timeout_s=20)
    transport.close()


def test_session_limit_is_reported(make_sshd: Fixture, collected: Fixture) -> None:
    server = make_sshd(MaxSessions="2")
    transport = connect(server.host(), known_hosts=server.known_hosts)
    running = threading.Event()
    with pytest.raises(HostError, match="refuses another session") as caught:
        _run_nested(transport, 3, running)
    assert "MaxSessions" in caught.value.why
    assert caught.value.exit_code == 1
    assert transport.exchange("echo free", **collected.sinks, timeout_s=20) == 0
    transport.close()


def _run_nested(transport: SshTransport, depth: int, running: threading.Event) -> None:
    """Run a command in the sink of another one: `depth` sessions at once."""
    if depth:
        transport.exchange(
            "echo x; cat >/dev/null",
            on_stdout=lambda _: _run_nested(transport, depth - 1, running),
            on_stderr=print,
            timeout_s=20,
        )


def test_refused_command_is_reported(scripted: Fixture, collected: Fixture) -> None:
    scripted.accepts_commands = False
    transport = connect(scripted.server.host(), known_hosts=scripted.server.known_hosts)
    with pytest.raises(HostError, match="refuses to run commands"):
        transport.exchange("true", **collected.sinks, timeout_s=20)
    transport.close()


def test_refused_session_is_reported(scripted: Fixture, collected: Fixture) -> None:
    scripted.accepts_sessions = False
    transport = connect(scripted.server.host(), known_hosts=scripted.server.known_hosts)
    with pytest.raises(HostError, match="refuses another session") as caught:
        transport.exchange("true", **collected.sinks, timeout_s=20)
    assert "prohibited" in caught.value.why.lower()
    transport.close()


def test_prefetched_session_closed_by_server_is_replaced(
    scripted: Fixture, collected: Fixture
) -> None:
    """sshd's ChannelTimeout may close a session that is requested in advance and not used."""

    def end(channel: paramiko.Channel, command: str) -> None:
        channel.send_exit_status(4)
        channel.close()

    scripted.on_command = end
    transport = connect(scripted.server.host(), known_hosts=scripted.server.known_hosts)
    scripted.transports[0].accept(10).close()
    assert transport._next_session is not None
    assert transport._next_session.channel.status_event.wait(10)  # set when the end arrives
    assert transport.exchange("true", **collected.sinks, timeout_s=20) == 4
    assert scripted.commands == ["true"]
    transport.close()


def test_channel_closed_without_status_is_unreachable(
    scripted: Fixture, collected: Fixture
) -> None:
    def close_channel(channel: paramiko.Channel, command: str) -> None:
        channel.sendall(b"half")
        channel.close()

    scripted.on_command = close_channel
    transport = connect(scripted.server.host(), known_hosts=scripted.server.known_hosts)
    with pytest.raises(Unreachable, match="lost") as caught:
        transport.exchange("true", **collected.sinks, timeout_s=20)
    assert bytes(collected.out) == b"half"
    assert "no exit status" in caught.value.why
    transport.close()


def test_status_before_last_output_loses_no_output(scripted: Fixture, collected: Fixture) -> None:
    def send_status_early(channel: paramiko.Channel, command: str) -> None:
        channel.send_exit_status(7)
        channel.sendall(b"x" * 100_000)
        channel.sendall_stderr(b"late")
        channel.close()

    scripted.on_command = send_status_early
    transport = connect(scripted.server.host(), known_hosts=scripted.server.known_hosts)
    assert transport.exchange("true", **collected.sinks, timeout_s=20) == 7
    assert (len(collected.out), bytes(collected.err)) == (100_000, b"late")
    transport.close()


def test_status_without_end_of_output_is_unreachable(scripted: Fixture, collected: Fixture) -> None:
    """OpenSSH sends the status when the command ends, possibly before the rest of its output."""

    def drop_connection(channel: paramiko.Channel, command: str) -> None:
        channel.sendall(b"half of it")
        channel.send_exit_status(0)
        channel.get_transport().sock.close()

    scripted.on_command = drop_connection
    transport = connect(scripted.server.host(), known_hosts=scripted.server.known_hosts)
    with pytest.raises(Unreachable, match="lost"):
        transport.exchange("true", **collected.sinks, timeout_s=20)
    assert bytes(collected.out) == b"half of it"
    transport.close()


def test_early_session_is_requested_from_openssh_only(
    scripted: Fixture, sshd: Fixture, collected: Fixture
) -> None:
    for server, early in ((sshd, True), (scripted.server, False)):
        transport = connect(server.host(), known_hosts=server.known_hosts)
        assert (transport._wire.early_channel is not None) is early
        transport.close()


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["1M", "16K"])
def test_rekeying_during_command_keeps_output(
    make_sshd: Fixture, collected: Fixture, limit: str
) -> None:
    server = make_sshd(RekeyLimit=limit)
    transport = connect(server.host(), known_hosts=server.known_hosts)
    data = bytes(range(256)) * 8000
    assert transport.send("cat", [data] * 2, **collected.sinks, timeout_s=60) == 0
    assert bytes(collected.out) == data * 2
    transport.close()


@pytest.mark.slow
def test_each_further_command_takes_one_round_trip(
    sshd: Fixture, collected: Fixture, network: Network
) -> None:
    """The session is open before the command is known: only the command's request takes time."""
    relay = network.relay(("127.0.0.1", sshd.port), delay_s=0.1)
    transport = connect(sshd.host(port=relay.port), known_hosts=sshd.known_hosts)
    transport.exchange("true", **collected.sinks, timeout_s=20)
    times = []
    for _ in range(5):
        started = time.monotonic()
        transport.exchange("true", b"input", **collected.sinks, timeout_s=20)
        times.append(time.monotonic() - started)
    assert 0.2 <= min(times) < 0.38  # the fastest of five, because the machine may be busy
    transport.close()
