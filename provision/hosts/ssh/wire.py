"""paramiko's Transport with the waits taken out that the protocol does not ask for.

What the stock client sends one by one, waiting a round trip each time, goes out together here:

- the service request and the authentication request that needs it (RFC 4252 §4 lets the client go on at once);
- with a single key to try, and OpenSSH on the other side, the opening of the first channel: "any non-authentication
  messages sent by the client after the request that resulted in SSH_MSG_USERAUTH_SUCCESS … MUST be passed to the
  service" (RFC 4252 §5.1);
- a command and its input, without waiting for the command's acknowledgement;
- the opening of the next session, while the current command runs.

From TCP's first packet to the first command's output that makes 5 round trips instead of 8.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING, Any, ClassVar

from paramiko import Channel, Message, PKey, Transport
from paramiko.auth_handler import AuthHandler
from paramiko.common import (
    CONNECTION_FAILED_CODE,
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_FAILURE,
    MSG_CHANNEL_REQUEST,
    cMSG_CHANNEL_OPEN,
    cMSG_CHANNEL_REQUEST,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.ssh_exception import SSHException

WINDOW_BYTES = 16 * 1024 * 1024
"""How much output may be on its way to us: 2 MiB (the default) at 50 ms round trip stops at 40
MB/s."""
_SILENT_KEEPALIVES = 3
_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)
"""Authenticated encryption first: one pass over the data instead of a cipher and a Python-driven
MAC."""


class _EagerAuth(AuthHandler):
    """Sends the authentication request together with the service request it depends on, and the latter only once."""

    transport: Wire

    def _request_auth(self) -> None:
        if not self.transport.service_requested:
            self.transport.service_requested = True
            super()._request_auth()  # type: ignore[misc]
        accepted = Message()
        accepted.add_string("ssh-userauth")
        accepted.rewind()
        super()._parse_service_accept(accepted)  # type: ignore[misc]

    def _parse_service_accept(self, message: Message) -> None:
        """The server's answer carries nothing that we still wait for."""


@dataclass(frozen=True)
class Goal:
    """Where a channel leads: to a session, or, with a port, from the server on to another machine."""

    address: str = ""
    port: int = 0


SESSION = Goal()


@dataclass
class Opening:
    """A channel that was asked for and may not have been granted yet."""

    channel: Channel
    answered: threading.Event


@dataclass
class Ending:
    """What the server said about the end of a command besides its exit status."""

    signal: str = ""
    refused: bool = False
    closed: bool = False
    """The server itself ended the channel, so that nothing it printed is missing."""


class Wire(Transport):
    """One SSH connection, client side."""

    if TYPE_CHECKING:
        active: bool
        _channels: Any
        _handler_table: dict[int, Any]

        def _send_user_message(self, data: Message) -> None: ...
        def _next_channel(self) -> int: ...

    def __init__(self, sock: socket | Channel, **options: Any) -> None:
        super().__init__(sock, default_window_size=WINDOW_BYTES, **options)
        security = self.get_security_options()
        offered = tuple(security.ciphers)
        security.ciphers = (
            *(name for name in _CIPHERS if name in offered),
            *(name for name in offered if name not in _CIPHERS),
        )
        self.service_requested = False
        self.early: Goal | None = None
        """What to open together with the authentication; right only when there is one key to
        try."""
        self.spare: Opening | None = None
        self.disconnect_reason = ""
        self.refusals: dict[int, str] = {}
        self.endings: dict[int, Ending] = {}
        self._unanswered = 0

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Plain host keys only: a certificate could not be checked against known_hosts here."""
        return tuple(name for name in super().preferred_keys if "-cert-" not in name)

    def prefer_host_keys(self, algorithms: tuple[str, ...]) -> None:
        """Ask for these host key algorithms first, as OpenSSH does with those of the known keys."""
        security = self.get_security_options()
        offered = tuple(security.key_types)
        first = tuple(name for name in algorithms if name in offered)
        security.key_types = (*first, *(name for name in offered if name not in first))

    def auth_publickey(
        self, username: str, key: PKey, event: threading.Event | None = None
    ) -> list[str]:
        """Authenticate with one key; as `Transport.auth_publickey`, one round trip sooner."""
        if not self.active or not self.initial_kex_done:
            raise SSHException("No existing session")
        done = event or threading.Event()
        handler = self.auth_handler = _EagerAuth(self)
        handler.auth_publickey(username, key, done)
        # OpenSSH keeps RFC 4252 §5.1; servers that authenticate in the background may take it for
        # an intrusion
        if self.early is not None and "OpenSSH" in self.remote_version:
            self.spare, self.early = self.begin(self.early), None
        return [] if event else handler.wait_for_response(done)

    def begin(self, goal: Goal) -> Opening:
        """Ask for a channel without waiting for the answer; as `Transport.open_channel` otherwise."""
        with self.lock:
            number = self._next_channel()
            request = Message()
            request.add_byte(cMSG_CHANNEL_OPEN)
            request.add_string("direct-tcpip" if goal.port else "session")
            request.add_int(number)
            request.add_int(self.default_window_size)
            request.add_int(self.default_max_packet_size)
            if goal.port:
                request.add(goal.address, goal.port, "", 0)
            channel: Any = Channel(number)
            opening = Opening(channel, threading.Event())
            self._channels.put(number, channel)
            self.channel_events[number] = opening.answered
            self.channels_seen[number] = True
            channel._set_transport(self)  # noqa: SLF001
            channel._set_window(self.default_window_size, self.default_max_packet_size)  # noqa: SLF001
        self._send_user_message(request)
        return opening

    def start_command(self, channel: Channel, command: bytes) -> Ending:
        """Ask for `command` on an open session without waiting for the acknowledgement."""
        ending = self.endings[channel.chanid] = Ending()
        request = Message()
        request.add_byte(cMSG_CHANNEL_REQUEST)
        request.add_int(channel.remote_chanid)
        request.add_string("exec")
        request.add_boolean(True)
        request.add_string(command)
        self._send_user_message(request)
        return ending

    def keep_alive(self, interval_s: int) -> None:
        """After `interval_s` seconds of silence ask for a sign of life; give up after three without an answer."""
        self.packetizer.set_keepalive(interval_s, self._ask_for_life)

    def _ask_for_life(self) -> None:
        if self._unanswered >= _SILENT_KEEPALIVES:
            raise SSHException(f"no answer to {_SILENT_KEEPALIVES} keep-alive requests")
        self._unanswered += 1
        request = Message()
        request.add_byte(cMSG_GLOBAL_REQUEST)
        request.add_string("keepalive@openssh.com")
        request.add_boolean(True)
        self._send_user_message(request)

    def _parse_request_success(self, message: Message) -> None:
        self._unanswered = 0
        super()._parse_request_success(message)  # type: ignore[misc]

    def _parse_request_failure(self, message: Message) -> None:
        self._unanswered = 0
        super()._parse_request_failure(message)  # type: ignore[misc]

    def _parse_disconnect(self, message: Message) -> None:
        message.get_int()
        self.disconnect_reason = message.get_text()

    def _parse_channel_open_failure(self, message: Message) -> None:
        number, code, text = message.get_int(), message.get_int(), message.get_text()
        reason = CONNECTION_FAILED_CODE.get(code, f"code {code}")
        self.refusals[number] = f"{reason}: {text}" if text else reason
        message.rewind()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]
        self.saved_exception = None

    def on_channel_request(self, channel: Channel, message: Message) -> None:
        """Keep the name of the signal that ended a command; the rest is as ever."""
        name = message.get_text()
        message.get_boolean()
        ending = self.endings.get(channel.chanid)
        if name == "exit-signal" and ending:
            ending.signal = message.get_text()
        message.rewind()
        message.get_int()
        channel._handle_request(message)  # type: ignore[attr-defined]  # noqa: SLF001

    def on_channel_refusal(self, channel: Channel, message: Message) -> None:
        """Keep that a command was refused, which closes the channel."""
        ending = self.endings.get(channel.chanid)
        if ending:
            ending.refused = True
        channel._request_failed(message)  # type: ignore[attr-defined]  # noqa: SLF001

    def on_channel_close(self, channel: Channel, message: Message) -> None:
        """Keep that it was the server who closed the channel, and not the connection that went."""
        ending = self.endings.get(channel.chanid)
        if ending:
            ending.closed = True
        channel._handle_close(message)  # type: ignore[attr-defined]  # noqa: SLF001

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_REQUEST: lambda channel, message: channel.transport.on_channel_request(
            channel, message
        ),
        MSG_CHANNEL_CLOSE: lambda channel, message: channel.transport.on_channel_close(
            channel, message
        ),
        MSG_CHANNEL_FAILURE: lambda channel, message: channel.transport.on_channel_refusal(
            channel, message
        ),
    }


def opened(wire: Wire, opening: Opening, deadline: float) -> Channel | None:
    """Wait until the channel is granted; None when the time, the connection or it ended first, or it was refused."""
    while wire.is_active() and not opening.answered.wait(
        min(1.0, max(0.0, deadline - time.monotonic()))
    ):
        if time.monotonic() >= deadline:
            return None
    return opening.channel if opening.channel.active and not opening.channel.closed else None
