"""paramiko's Transport without the round trips that the SSH protocol does not require.

Stock paramiko sends these one by one and waits for an answer each time; `Wire` sends them together:

- the service request and the authentication request (RFC 4252 §4 lets the client go on at once);
- with a single key to offer, and OpenSSH as the server, the request for the first channel: "any
  non-authentication messages sent by the client after the request that resulted in
  SSH_MSG_USERAUTH_SUCCESS … MUST be passed to the service" (RFC 4252 §5.1);
- a command and its input, without waiting until the server acknowledges the command;
- the request for the next session, while the current command runs.

From the first TCP packet to the first command's output, that is 5 round trips instead of 8.

It overrides private parts of paramiko; tests/unit/test_dependencies.py lists and checks them.
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
"""How much output may be in flight to us; paramiko's 2 MiB limit 50 ms round trips to 40 MB/s."""
_MAX_UNANSWERED_KEEPALIVES = 3
_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)
"""Authenticated encryption first: one pass over the data, instead of a cipher and then a MAC."""


class _EagerAuth(AuthHandler):
    """Sends the authentication request right after the service request, which it sends once."""

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
        """Ignore the server's answer: `_request_auth` went on without it."""


@dataclass(frozen=True)
class ChannelTarget:
    """What a channel leads to: a session or, with a port, a TCP address behind the server."""

    address: str = ""
    port: int = 0


SESSION = ChannelTarget()


@dataclass
class PendingChannel:
    """A requested channel; `answered` is set when the server has granted or refused it."""

    channel: Channel
    answered: threading.Event


@dataclass
class CommandEnd:
    """What the server reports about a command's end besides the exit status."""

    signal: str = ""
    refused: bool = False
    closed: bool = False
    """True when the server closed the channel: all output has arrived."""


class Wire(Transport):
    """The client side of one SSH connection."""

    if TYPE_CHECKING:
        active: bool
        _channels: Any

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
        self.early_target: ChannelTarget | None = None
        """The channel to request together with the authentication; only for a single key."""
        self.early_channel: PendingChannel | None = None
        self.disconnect_reason = ""
        self.refusals: dict[int, str] = {}
        """Why the server refused a channel, by channel number."""
        self.command_ends: dict[int, CommandEnd] = {}
        """By channel number."""
        self._unanswered_keepalives = 0

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Host key algorithms without certificates, which cannot be checked against known_hosts."""
        return tuple(name for name in super().preferred_keys if "-cert-" not in name)

    def prefer_host_keys(self, algorithms: tuple[str, ...]) -> None:
        """Prefer these host key algorithms, as OpenSSH prefers those of the known keys."""
        security = self.get_security_options()
        offered = tuple(security.key_types)
        first = tuple(name for name in algorithms if name in offered)
        security.key_types = (*first, *(name for name in offered if name not in first))

    def auth_publickey(
        self, username: str, key: PKey, event: threading.Event | None = None
    ) -> list[str]:
        """Authenticate with one key, like `Transport.auth_publickey` but one round trip faster.

        Raises AuthenticationException when the server refuses the key, SSHException when the
        connection is lost.
        """
        if not self.active or not self.initial_kex_done:
            raise SSHException("No existing session")
        done = event or threading.Event()
        handler = self.auth_handler = _EagerAuth(self)
        handler.auth_publickey(username, key, done)
        # Only OpenSSH is known to keep RFC 4252 §5.1; a server that authenticates in the background
        # may drop a connection that requests a channel too early.
        if self.early_target is not None and "OpenSSH" in self.remote_version:
            self.early_channel = self.request_channel(self.early_target)
            self.early_target = None
        return [] if event else handler.wait_for_response(done)

    def request_channel(self, target: ChannelTarget) -> PendingChannel:
        """Request a channel, like `Transport.open_channel`, but without waiting for the answer."""
        with self.lock:
            number = self._next_channel()
            request = Message()
            request.add_byte(cMSG_CHANNEL_OPEN)
            request.add_string("direct-tcpip" if target.port else "session")
            request.add_int(number)
            request.add_int(self.default_window_size)
            request.add_int(self.default_max_packet_size)
            if target.port:
                request.add(target.address, target.port, "", 0)
            channel: Any = Channel(number)
            pending = PendingChannel(channel, threading.Event())
            self._channels.put(number, channel)
            self.channel_events[number] = pending.answered
            self.channels_seen[number] = True
            channel._set_transport(self)  # noqa: SLF001
            channel._set_window(self.default_window_size, self.default_max_packet_size)  # noqa: SLF001
        self._send_user_message(request)
        return pending

    def start_command(self, channel: Channel, command: bytes) -> CommandEnd:
        """Start `command` on an open session, without waiting for the acknowledgement."""
        end = self.command_ends[channel.chanid] = CommandEnd()
        request = Message()
        request.add_byte(cMSG_CHANNEL_REQUEST)
        request.add_int(channel.remote_chanid)
        request.add_string("exec")
        request.add_boolean(True)
        request.add_string(command)
        self._send_user_message(request)
        return end

    def keep_alive(self, interval_s: int) -> None:
        """Test the connection after `interval_s` seconds of silence; drop it after 3 failures."""
        self.packetizer.set_keepalive(interval_s, self._send_keepalive)

    def _send_keepalive(self) -> None:
        if self._unanswered_keepalives >= _MAX_UNANSWERED_KEEPALIVES:
            raise SSHException(f"no answer to {_MAX_UNANSWERED_KEEPALIVES} keep-alive requests")
        self._unanswered_keepalives += 1
        request = Message()
        request.add_byte(cMSG_GLOBAL_REQUEST)
        request.add_string("keepalive@openssh.com")
        request.add_boolean(True)
        self._send_user_message(request)

    def _parse_request_success(self, message: Message) -> None:
        self._unanswered_keepalives = 0
        super()._parse_request_success(message)  # type: ignore[misc]

    def _parse_request_failure(self, message: Message) -> None:
        self._unanswered_keepalives = 0
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
        """Record the signal that ended a command, then handle the request as paramiko does."""
        name = message.get_text()
        message.get_boolean()
        end = self.command_ends.get(channel.chanid)
        if name == "exit-signal" and end:
            end.signal = message.get_text()
        message.rewind()
        message.get_int()
        channel._handle_request(message)  # type: ignore[attr-defined]  # noqa: SLF001

    def on_channel_refusal(self, channel: Channel, message: Message) -> None:
        """Record that the server refused a command, then let paramiko close the channel."""
        end = self.command_ends.get(channel.chanid)
        if end:
            end.refused = True
        channel._request_failed(message)  # type: ignore[attr-defined]  # noqa: SLF001

    def on_channel_close(self, channel: Channel, message: Message) -> None:
        """Record that the server closed the channel: the connection was not lost."""
        end = self.command_ends.get(channel.chanid)
        if end:
            end.closed = True
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


def wait_for_channel(wire: Wire, pending: PendingChannel, deadline: float) -> Channel | None:
    """Wait until the server grants a channel, and return it.

    Returns None when the server refuses or closes it, when the connection is lost, or at the
    deadline (`time.monotonic`).
    """
    while wire.is_active() and not pending.answered.wait(
        min(1.0, max(0.0, deadline - time.monotonic()))
    ):
        if time.monotonic() >= deadline:
            return None
    channel = pending.channel
    return channel if channel.active and not channel.closed else None
