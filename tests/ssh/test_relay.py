"""The relay of the tests: it delays, counts, cuts and silences connections."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from provision.testing.network import Network


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """An echo server; the value is its address."""
    server = socket.create_server(("127.0.0.1", 0), backlog=200)

    def talk(client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(65536):
                    client.sendall(data)
                client.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(client,), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    yield "127.0.0.1", server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def read_all(sock: socket.socket) -> bytes:
    data = bytearray()
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionError:
        pass
    return bytes(data)


def talk(port: int, data: bytes) -> bytes:
    """Send data, close the sending side, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:

        def send() -> None:
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass

        sender = threading.Thread(target=send)
        sender.start()
        collected = read_all(sock)
        sender.join()
        return collected


def test_relay_delivers_and_counts_all_bytes(network: Network, echo: tuple[str, int]) -> None:
    relay = network.relay(echo)
    data = os.urandom(30_000_000)
    assert hashlib.sha256(talk(relay.port, data)).digest() == hashlib.sha256(data).digest()
    stats = relay.stats()
    assert (stats.connections, stats.bytes_up, stats.bytes_down) == (1, len(data), len(data))


def test_relay_delays_both_directions(network: Network, echo: tuple[str, int]) -> None:
    relay = network.relay(echo, delay_s=0.1, connect_round_trip=False)
    with socket.create_connection(("127.0.0.1", relay.port)) as sock:
        for _ in range(3):
            started = time.monotonic()
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"
            assert 0.2 <= time.monotonic() - started < 0.3
    assert relay.stats().turns == 6


def test_relay_can_delay_tcp_handshake(network: Network, echo: tuple[str, int]) -> None:
    relay = network.relay(echo, delay_s=0.1)
    started = time.monotonic()
    assert talk(relay.port, b"x") == b"x"
    assert (
        0.4 <= time.monotonic() - started < 0.55
    )  # one round trip for the handshake, one for the byte


def test_relay_delay_keeps_throughput(network: Network, echo: tuple[str, int]) -> None:
    relay = network.relay(echo, delay_s=0.05)
    data = bytes(20_000_000)
    started = time.monotonic()
    assert talk(relay.port, data) == data
    assert time.monotonic() - started < 3


def test_relay_serves_fifty_concurrent_connections(network: Network, echo: tuple[str, int]) -> None:
    relay = network.relay(echo, delay_s=0.02)
    results: list[bool] = []

    def one(number: int) -> None:
        data = bytes([number]) * 100_000
        results.append(talk(relay.port, data) == data)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 50
    assert relay.stats().connections == 50


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("limit", [0, 1, 1000, 65536, 70_000])
def test_cut_relay_delivers_at_most_the_limit(
    network: Network, echo: tuple[str, int], limit: int, reset: bool
) -> None:
    relay = network.relay(echo)
    relay.cut(after_down=limit, reset=reset)
    collected = talk(relay.port, bytes(200_000))
    assert relay.stats().bytes_down == limit
    assert len(collected) == limit or (reset and len(collected) < limit)


def test_silent_relay_drops_data_and_keeps_connection(
    network: Network, echo: tuple[str, int]
) -> None:
    relay = network.relay(echo)
    with socket.create_connection(("127.0.0.1", relay.port)) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        relay.silence()
        sock.sendall(b"y")
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_refusing_relay_accepts_again_after_heal(network: Network, echo: tuple[str, int]) -> None:
    relay = network.relay(echo)
    relay.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port))
    relay.heal()
    assert talk(relay.port, b"x") == b"x"


def test_missing_server_behind_relay_closes_connection(network: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    relay = network.relay(("127.0.0.1", port))
    assert talk(relay.port, b"x") == b""


def test_relay_leaves_no_socket_or_thread(echo: tuple[str, int]) -> None:
    before = threading.active_count()
    with Network() as network:
        relay = network.relay(echo)
        sock = socket.create_connection(("127.0.0.1", relay.port))
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    assert read_all(sock) == b""
    sock.close()
    assert (
        threading.active_count() <= before + 1
    )  # the echo server's own, which ends with its client
