"""A network that can be slow, interrupted or silent: TCP relays on loopback.

The kernel's tc netem needs root and a module that many machines do not have. Here one thread runs
one event loop for all relays. Every chunk waits in a queue for its time, so the order is kept and
nothing is lost.

    with Network() as network:
        relay = network.relay(("127.0.0.1", 22), delay_s=0.025)    # 50 ms round trip
        …connect to relay.host, relay.port…
        relay.cut(after_down=1000)      # drop connections after 1000 bytes from the server
        relay.stats()
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar, cast

_T = TypeVar("_T")
_QUEUE_MAX_BYTES = 64 * 1024 * 1024
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: closing sends a reset instead of an orderly end."""


@dataclass(frozen=True)
class Stats:
    """The traffic of a relay. `turns` counts changes of direction in all its connections."""

    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    turns: int = 0


@dataclass(frozen=True)
class Faults:
    """The faults of a relay. Byte counts are per connection, None: never; `up` is to the server."""

    cut_up: int | None = None
    cut_down: int | None = None
    reset: bool = False
    """Drop with a reset instead of an orderly end."""
    silent: bool = False
    """Discard all data in both directions while connections stay open."""


class Network:
    """One thread with the event loop of all relays; a context manager that ends them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._relays: list[Relay] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for relay in self._relays:
            self.run(relay.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def relay(
        self,
        target: tuple[str, int],
        *,
        delay_s: float = 0.0,
        connect_round_trip: bool = True,
        faults: Faults | None = None,
    ) -> Relay:
        """Start a relay to `target` on a free port of 127.0.0.1, which delays data by `delay_s`.

        A connection to loopback opens at once. With `connect_round_trip` the relay adds the round
        trip of the TCP handshake before the server sees the connection.
        """
        relay = Relay(
            self,
            target,
            delay_s,
            connect_delay_s=delay_s * (3 if connect_round_trip else 1),
            faults=faults or Faults(),
        )
        self.run(relay.open())
        self._relays.append(relay)
        return relay

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the network's event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


class Relay:
    """One listening port and the server behind it, created by `Network.relay`. Thread-safe."""

    host = "127.0.0.1"

    def __init__(
        self,
        network: Network,
        target: tuple[str, int],
        delay_s: float,
        *,
        connect_delay_s: float,
        faults: Faults,
    ) -> None:
        self.port = 0
        self.target = target
        self.delay_s = delay_s
        self.connect_delay_s = connect_delay_s
        self.faults = faults
        self._stats = Stats()
        self._network = network
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    def stats(self) -> Stats:
        """The traffic so far."""
        return self._stats

    def cut(
        self, *, after_up: int | None = None, after_down: int | None = None, reset: bool = False
    ) -> None:
        """Drop each connection, existing ones too, after so many of its bytes in a direction."""
        self._set(replace(self.faults, cut_up=after_up, cut_down=after_down, reset=reset))

    def silence(self, *, on: bool = True) -> None:
        """Discard all data from now on, as a router without a route does."""
        self._set(replace(self.faults, silent=on))

    def heal(self) -> None:
        """Clear the faults and listen again."""
        self._set(Faults())
        if self._server is None:
            self._network.run(self.open())

    def refuse(self) -> None:
        """Refuse connections until `heal`; existing ones go on."""
        self._network.run(self._stop_listening())

    def drop(self) -> None:
        """End all connections now."""
        self._network.run(self._abort_all())

    async def open(self) -> None:
        """Listen (in the network's loop)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Side(_Connection(self, loop), up=True), self.host, self.port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Stop listening and end all connections (in the network's loop)."""
        await self._stop_listening()
        await self._abort_all()

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    def _set(self, faults: Faults) -> None:
        async def apply() -> None:
            self.faults = faults
            for connection in list(self._connections):
                connection.check_cut()

        self._network.run(apply())

    def add(self, connection: _Connection) -> None:
        """Add and count a connection (in the network's loop)."""
        self._connections.add(connection)
        self._stats = replace(self._stats, connections=self._stats.connections + 1)

    def remove(self, connection: _Connection) -> None:
        """Remove a connection (in the network's loop)."""
        self._connections.discard(connection)

    def count(self, size: int, *, up: bool, turned: bool) -> None:
        """Count forwarded bytes (in the network's loop)."""
        now = self._stats
        bytes_up, bytes_down = now.bytes_up + size * up, now.bytes_down + size * (not up)
        self._stats = Stats(now.connections, bytes_up, bytes_down, now.turns + turned)


@dataclass
class _Direction:
    """One direction of a connection: chunks that wait for their time (None: end of stream)."""

    up: bool
    queue: deque[tuple[float, bytes | None]] = field(default_factory=deque)
    queued: int = 0
    passed: int = 0
    timer: asyncio.TimerHandle | None = None
    source: asyncio.Transport | None = None
    sink: asyncio.Transport | None = None
    full: bool = False
    last: bool = False
    """The source has closed: the connection ends when everything has arrived."""
    done: bool = False


class _Connection:
    """The connection of a client with the server."""

    def __init__(self, relay: Relay, loop: asyncio.AbstractEventLoop) -> None:
        self.relay = relay
        self.loop = loop
        self.lines = {True: _Direction(up=True), False: _Direction(up=False)}
        self.last_up: bool | None = None
        self.ended = False
        self._dialing: asyncio.Task[None] | None = None

    def client_connected(self, transport: asyncio.Transport) -> None:
        self.relay.add(self)
        self.lines[True].source = self.lines[False].sink = transport
        self._dialing = self.loop.create_task(self._dial())

    async def _dial(self) -> None:
        if self.relay.connect_delay_s:
            await asyncio.sleep(self.relay.connect_delay_s)
        try:
            await self.loop.create_connection(lambda: _Side(self, up=False), *self.relay.target)
        except OSError:
            self.finish()

    def server_connected(self, transport: asyncio.Transport) -> None:
        if self.ended:
            transport.abort()
            return
        self.lines[False].source = self.lines[True].sink = transport
        self._schedule(self.lines[True])

    def take(self, data: bytes | None, *, up: bool) -> None:
        """Queue a chunk, or the end of the stream, from one side."""
        line = self.lines[up]
        if data is not None and self.relay.faults.silent:
            return
        line.queue.append((self.loop.time() + self.relay.delay_s, data))
        line.queued += len(data or b"")
        if line.queued > _QUEUE_MAX_BYTES and line.source:
            line.source.pause_reading()
        self._schedule(line)

    def _schedule(self, line: _Direction) -> None:
        if self.ended or line.timer is not None or line.sink is None or line.full or not line.queue:
            return
        due_at = line.queue[0][0]
        if due_at <= self.loop.time():
            self._flush(line)
        else:
            line.timer = self.loop.call_at(due_at, self._on_timer, line)

    def _on_timer(self, line: _Direction) -> None:
        line.timer = None
        self._flush(line)

    def _flush(self, line: _Direction) -> None:
        now = self.loop.time() + 0.0005  # the selector's clock ticks in milliseconds
        while line.queue and line.queue[0][0] <= now and not line.full and not self.ended:
            _, data = line.queue.popleft()
            if data is None:
                self._end_of_stream(line)
            else:
                line.queued -= len(data)
                self._pass(line, data)
        if line.source and line.queued <= _QUEUE_MAX_BYTES // 2 and not line.source.is_closing():
            line.source.resume_reading()
        self._schedule(line)

    def _pass(self, line: _Direction, data: bytes) -> None:
        limit = self.relay.faults.cut_up if line.up else self.relay.faults.cut_down
        if limit is not None:
            data = data[: max(0, limit - line.passed)]
        if data and line.sink and not self.relay.faults.silent:
            line.passed += len(data)
            self.relay.count(len(data), up=line.up, turned=self.last_up is not line.up)
            self.last_up = line.up
            line.sink.write(data)
        self.check_cut()

    def _end_of_stream(self, line: _Direction) -> None:
        line.done = True
        if line.last or all(other.done for other in self.lines.values()):
            self.finish()
        elif line.sink and not line.sink.is_closing():
            line.sink.write_eof()

    def check_cut(self) -> None:
        """Drop the connection if it has reached a byte limit."""
        faults = self.relay.faults
        for line, limit in (
            (self.lines[True], faults.cut_up),
            (self.lines[False], faults.cut_down),
        ):
            if limit is not None and line.passed >= limit:
                self.finish(reset=faults.reset)

    def set_full(self, *, up: bool, is_full: bool) -> None:
        """Pause or resume a direction as its receiver's buffer is full or not."""
        line = self.lines[up]
        line.full = is_full
        self._schedule(line)

    def finish(self, *, reset: bool = False) -> None:
        """End both sides; data that was written before arrives, unless `reset`."""
        self.ended = True
        for line in self.lines.values():
            if line.timer:
                line.timer.cancel()
            if line.source:
                if reset:
                    line.source.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, _RESET
                    )
                    line.source.abort()
                else:
                    line.source.close()
        if (
            self._dialing
            and not self._dialing.done()
            and self._dialing is not asyncio.current_task(self.loop)
        ):
            self._dialing.cancel()
        self.relay.remove(self)

    def abort(self) -> None:
        """End both sides at once."""
        self.finish(reset=True)

    def lost(self, *, up: bool) -> None:
        """One side has closed: end the other when everything before has arrived."""
        line = self.lines[up]
        line.last = True
        self.lines[not up].queue.clear()
        self.take(None, up=up)
        if line.sink is None or line.done:
            self.finish()


class _Side(asyncio.Protocol):
    """One of the two sockets of a connection. `up` = what it reads goes to the server."""

    def __init__(self, connection: _Connection, *, up: bool) -> None:
        self.connection = connection
        self.up = up

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=4 * 1024 * 1024)
        (self.connection.client_connected if self.up else self.connection.server_connected)(stream)

    def data_received(self, data: bytes) -> None:
        self.connection.take(data, up=self.up)

    def eof_received(self) -> bool:
        self.connection.take(None, up=self.up)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - named by asyncio
        self.connection.lost(up=self.up)

    def pause_writing(self) -> None:
        self.connection.set_full(up=not self.up, is_full=True)

    def resume_writing(self) -> None:
        self.connection.set_full(up=not self.up, is_full=False)
