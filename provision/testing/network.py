"""A network that can be slow, cut, deaf or closed: a TCP relay on loopback, for tests and benchmarks.

The kernel's own means (tc netem) need a module that many machines lack, and root. Here one thread
runs one event loop for any number of relays; every chunk waits in a queue for its time, so order is
kept and nothing is lost.

    with Network() as network:
        relay = network.relay(("127.0.0.1", 22), delay_s=0.025)     # 50 ms round trip
        …connect to relay.host, relay.port…
        relay.cut(after_down=1000)                                  # the next answers end after 1000 bytes
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
"""SO_LINGER with no time: closing sends a reset instead of a polite end."""


@dataclass(frozen=True)
class Stats:
    """What went through a relay so far. `turns` counts changes of direction, summed over the connections."""

    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    turns: int = 0


@dataclass(frozen=True)
class Faults:
    """What goes wrong. Byte counts are per connection; None means never. `up` is from the client to the server."""

    cut_up: int | None = None
    cut_down: int | None = None
    reset: bool = False
    """Cut with a reset instead of an orderly end."""
    silent: bool = False
    """Swallow everything in both directions while connections stay open."""


class Network:
    """One thread with one event loop, in which relays live; a context manager that ends them all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._relays: list[Relay] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for relay in self._relays:
            self.do(relay.aclose())
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
        """Start a relay to `target` on a free port of 127.0.0.1; every byte is `delay_s` seconds late, in both directions.

        A connection to loopback is there at once. With `connect_round_trip` the relay adds the
        round trip that the TCP handshake would have taken, before the server sees the connection.
        """
        relay = Relay(
            self,
            target,
            delay_s,
            connect_delay_s=delay_s * (3 if connect_round_trip else 1),
            faults=faults or Faults(),
        )
        self.do(relay.open())
        self._relays.append(relay)
        return relay

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the network's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


class Relay:
    """One listening port and the server behind it. Made by `Network.relay`; its methods may be called from any thread."""

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
        self.counted = Stats()
        self._network = network
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    def stats(self) -> Stats:
        """What went through so far."""
        return self.counted

    def cut(
        self, *, after_up: int | None = None, after_down: int | None = None, reset: bool = False
    ) -> None:
        """End connections, running ones included, once so many bytes of theirs have passed in the given direction."""
        self._set(replace(self.faults, cut_up=after_up, cut_down=after_down, reset=reset))

    def silence(self, *, on: bool = True) -> None:
        """Swallow everything from now on, as a router does that lost its route."""
        self._set(replace(self.faults, silent=on))

    def heal(self) -> None:
        """No faults for what is connected from now on, and a listening port again."""
        self._set(Faults())
        if self._server is None:
            self._network.do(self.open())

    def refuse(self) -> None:
        """Close the port: connections are refused until `heal`; those that exist go on."""
        self._network.do(self._stop_listening())

    def drop(self) -> None:
        """End all connections now."""
        self._network.do(self._abort_all())

    async def open(self) -> None:
        """Listen (in the network's loop)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _End(_Connection(self, loop), up=True), self.host, self.port, backlog=1024
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

        self._network.do(apply())

    def joined(self, connection: _Connection) -> None:
        """Count a connection (in the network's loop)."""
        self._connections.add(connection)
        self.counted = replace(self.counted, connections=self.counted.connections + 1)

    def left(self, connection: _Connection) -> None:
        """Forget a connection (in the network's loop)."""
        self._connections.discard(connection)

    def count(self, size: int, *, up: bool, turned: bool) -> None:
        """Count bytes that passed (in the network's loop)."""
        now = self.counted
        bytes_up, bytes_down = now.bytes_up + size * up, now.bytes_down + size * (not up)
        self.counted = Stats(now.connections, bytes_up, bytes_down, now.turns + turned)


@dataclass
class _Line:
    """One direction of one connection: chunks that wait for their time (None = end of stream)."""

    up: bool
    queue: deque[tuple[float, bytes | None]] = field(default_factory=deque)
    queued: int = 0
    passed: int = 0
    timer: asyncio.TimerHandle | None = None
    source: asyncio.Transport | None = None
    sink: asyncio.Transport | None = None
    full: bool = False
    last: bool = False
    """The source is gone: when everything has arrived, the connection is over."""
    done: bool = False


class _Connection:
    """A client and the server it was connected to."""

    def __init__(self, relay: Relay, loop: asyncio.AbstractEventLoop) -> None:
        self.relay = relay
        self.loop = loop
        self.lines = {True: _Line(up=True), False: _Line(up=False)}
        self.last_up: bool | None = None
        self.ended = False
        self._dialing: asyncio.Task[None] | None = None

    def client_connected(self, transport: asyncio.Transport) -> None:
        self.relay.joined(self)
        self.lines[True].source = self.lines[False].sink = transport
        self._dialing = self.loop.create_task(self._dial())

    async def _dial(self) -> None:
        if self.relay.connect_delay_s:
            await asyncio.sleep(self.relay.connect_delay_s)
        try:
            await self.loop.create_connection(lambda: _End(self, up=False), *self.relay.target)
        except OSError:
            self.finish()

    def server_connected(self, transport: asyncio.Transport) -> None:
        if self.ended:
            transport.abort()
            return
        self.lines[False].source = self.lines[True].sink = transport
        self._schedule(self.lines[True])

    def take(self, data: bytes | None, *, up: bool) -> None:
        """A chunk (or the end) arrived from one side."""
        line = self.lines[up]
        if data is not None and self.relay.faults.silent:
            return
        line.queue.append((self.loop.time() + self.relay.delay_s, data))
        line.queued += len(data or b"")
        if line.queued > _QUEUE_MAX_BYTES and line.source:
            line.source.pause_reading()
        self._schedule(line)

    def _schedule(self, line: _Line) -> None:
        if self.ended or line.timer is not None or line.sink is None or line.full or not line.queue:
            return
        due = line.queue[0][0]
        if due <= self.loop.time():
            self._flush(line)
        else:
            line.timer = self.loop.call_at(due, self._due, line)

    def _due(self, line: _Line) -> None:
        line.timer = None
        self._flush(line)

    def _flush(self, line: _Line) -> None:
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

    def _pass(self, line: _Line, data: bytes) -> None:
        limit = self.relay.faults.cut_up if line.up else self.relay.faults.cut_down
        if limit is not None:
            data = data[: max(0, limit - line.passed)]
        if data and line.sink and not self.relay.faults.silent:
            line.passed += len(data)
            self.relay.count(len(data), up=line.up, turned=self.last_up is not line.up)
            self.last_up = line.up
            line.sink.write(data)
        self.check_cut()

    def _end_of_stream(self, line: _Line) -> None:
        line.done = True
        if line.last or all(each.done for each in self.lines.values()):
            self.finish()
        elif line.sink and not line.sink.is_closing():
            line.sink.write_eof()

    def check_cut(self) -> None:
        """End the connection if its time has come."""
        faults = self.relay.faults
        for line, limit in (
            (self.lines[True], faults.cut_up),
            (self.lines[False], faults.cut_down),
        ):
            if limit is not None and line.passed >= limit:
                self.finish(reset=faults.reset)

    def full(self, *, up: bool, is_full: bool) -> None:
        """The receiver of one direction cannot, or can again, take more."""
        line = self.lines[up]
        line.full = is_full
        self._schedule(line)

    def finish(self, *, reset: bool = False) -> None:
        """End both sides; what was handed over already still arrives, unless it is a reset."""
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
        self.relay.left(self)

    def abort(self) -> None:
        """End both sides at once."""
        self.finish(reset=True)

    def lost(self, *, up: bool) -> None:
        """One side is gone: the other learns of it when everything before has arrived."""
        line = self.lines[up]
        line.last = True
        self.lines[not up].queue.clear()
        self.take(None, up=up)
        if line.sink is None or line.done:
            self.finish()


class _End(asyncio.Protocol):
    """One of the two sockets of a connection. `up` = what it reads goes to the server."""

    def __init__(self, connection: _Connection, *, up: bool) -> None:
        self.connection = connection
        self.up = up

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        made.set_write_buffer_limits(high=4 * 1024 * 1024)
        (self.connection.client_connected if self.up else self.connection.server_connected)(made)

    def data_received(self, data: bytes) -> None:
        self.connection.take(data, up=self.up)

    def eof_received(self) -> bool:
        self.connection.take(None, up=self.up)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it
        self.connection.lost(up=self.up)

    def pause_writing(self) -> None:
        self.connection.full(up=not self.up, is_full=True)

    def resume_writing(self) -> None:
        self.connection.full(up=not self.up, is_full=False)
