"""Every package that provision/ imports is declared, and paramiko's private parts are unchanged."""

from __future__ import annotations

import ast
import inspect
import re
import socket
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import paramiko
import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from paramiko.agent import AgentSSH
from paramiko.auth_handler import AuthHandler
from paramiko.auth_strategy import AuthStrategy
from paramiko.buffered_pipe import BufferedPipe
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_FAILURE, MSG_CHANNEL_REQUEST
from paramiko.packet import Packetizer
from paramiko.transport import ChannelMap

from provision.hosts.ssh.wire import Wire

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# --- declared -------------------------------------------------------------------------------------

OPTIONAL = {"testing": ("provision/testing/",), "charts": ("provision/mps/bench/",)}
"""Extras of pyproject.toml, and the folders that may import what they declare."""
IN_CONTAINER = ("provision/mps/bench/workloads/", "provision/testing/mps/site/")
"""Folders whose files run in the worker container, where other packages are installed."""


def declared(requirements: list[str]) -> set[str]:
    return {normalized(Requirement(line).name) for line in requirements}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """The absolute imports below `tree`, those for the type checker alone left out."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(name), level=0):
                yield from (f"{name}.{alias.name}" for alias in node.names)
            case _:
                yield from imported_modules(node)


@cache
def providers_by_module() -> dict[str, frozenset[str]]:
    """The distributions of each top-level module; reading them all takes a second."""
    found = metadata.packages_distributions()
    return {top: frozenset(map(normalized, names)) for top, names in found.items()}


@cache
def files_of(distribution: str) -> tuple[str, ...]:
    """The files of a distribution, relative to its site-packages folder."""
    return tuple(str(file) for file in metadata.files(distribution) or ())


@cache
def distributions(module: str) -> frozenset[str]:
    """The distributions that provide a module; of several that share a namespace, its own."""
    top = module.partition(".")[0]
    providers = providers_by_module().get(top, frozenset())
    parts = module.split(".")
    while len(providers) > 1 and len(parts) > 1:
        folder = "/".join(parts)
        exact = {name for name in providers if provides(name, folder)}
        if exact:
            return frozenset(exact)
        parts.pop()
    return frozenset(providers)


def provides(distribution: str, folder: str) -> bool:
    return any(file.startswith((f"{folder}/", f"{folder}.py")) for file in files_of(distribution))


def undeclared(path: Path) -> list[str]:
    """The imports of one file that no requirement of pyproject.toml covers."""
    name = path.relative_to(ROOT).as_posix()
    allowed = declared(PROJECT["dependencies"])
    for extra, folders in OPTIONAL.items():
        if name.startswith(folders):
            allowed |= declared(PROJECT["optional-dependencies"][extra])
    modules = set(imported_modules(ast.parse(path.read_text(encoding="utf-8"))))
    third_party = {
        module
        for module in modules
        if module.partition(".")[0] not in {*sys.stdlib_module_names, "provision"}
    }
    return [module for module in sorted(third_party) if not distributions(module) & allowed]


def test_every_imported_package_is_declared() -> None:
    files = [
        path
        for path in sorted((ROOT / "provision").rglob("*.py"))
        if not path.relative_to(ROOT).as_posix().startswith(IN_CONTAINER)
    ]
    missing = {path.name: modules for path in files if (modules := undeclared(path))}
    assert missing == {}, "add the distribution to pyproject.toml, then run: make lock"


def test_every_declared_package_is_imported() -> None:
    modules = {
        module
        for path in (ROOT / "provision").rglob("*.py")
        for module in imported_modules(ast.parse(path.read_text(encoding="utf-8")))
    }
    imported = {
        name
        for module in modules
        if module.partition(".")[0] not in {*sys.stdlib_module_names, "provision"}
        for name in distributions(module)
    }
    by_name = {"google-cloud-compute"}  # cloud/api/google_library.py imports it by its name
    assert declared(PROJECT["dependencies"]) - imported == by_name


def test_namespace_package_is_traced_to_its_distribution() -> None:
    assert distributions("google.auth.credentials") == {"google-auth"}
    assert distributions("google.protobuf.json_format") == {"protobuf"}


# --- paramiko -------------------------------------------------------------------------------------

METHODS: list[tuple[type, str, tuple[str, ...]]] = [
    (AuthHandler, "_request_auth", ("self",)),
    (AuthHandler, "_parse_service_accept", ("self", "m")),
    (AuthHandler, "auth_publickey", ("self", "username", "key", "event")),
    (AuthHandler, "wait_for_response", ("self", "event")),
    (AuthStrategy, "get_sources", ("self",)),
    (AuthStrategy, "authenticate", ("self", "transport")),
    (AgentSSH, "_connect", ("self", "conn")),
    (paramiko.Transport, "auth_publickey", ("self", "username", "key", "event")),
    (paramiko.Transport, "_send_user_message", ("self", "data")),
    (paramiko.Transport, "_next_channel", ("self",)),
    (paramiko.Transport, "_parse_request_success", ("self", "m")),
    (paramiko.Transport, "_parse_request_failure", ("self", "m")),
    (paramiko.Transport, "_parse_disconnect", ("self", "m")),
    (paramiko.Transport, "_parse_channel_open_failure", ("self", "m")),
    (paramiko.Channel, "_set_transport", ("self", "transport")),
    (paramiko.Channel, "_set_window", ("self", "window_size", "max_packet_size")),
    (paramiko.Channel, "_handle_request", ("self", "m")),
    (paramiko.Channel, "_request_failed", ("self", "m")),
    (paramiko.Channel, "_handle_close", ("self", "m")),
    (ChannelMap, "put", ("self", "chanid", "chan")),
    (Packetizer, "set_keepalive", ("self", "interval", "callback")),
    (Packetizer, "complete_handshake", ("self",)),
    (BufferedPipe, "set_event", ("self", "event")),
]
"""What hosts/ssh and testing/ssh override or call, with the parameters they rely on."""
TRANSPORT_FIELDS = {
    *("_channels", "channel_events", "channels_seen", "lock", "active", "initial_kex_done"),
    *("auth_handler", "packetizer", "saved_exception", "remote_version", "handshake_timeout"),
    *("banner_timeout", "default_window_size", "default_max_packet_size"),
}
CHANNEL_FIELDS = {
    *("chanid", "remote_chanid", "active", "closed", "eof_received", "exit_status"),
    *("status_event", "in_buffer", "in_stderr_buffer", "out_window_size"),
}
HANDLERS = {
    MSG_CHANNEL_REQUEST: "_handle_request",
    MSG_CHANNEL_CLOSE: "_handle_close",
    MSG_CHANNEL_FAILURE: "_request_failed",
}
"""Messages to a channel that `Wire` and the mock's transport intercept, with paramiko's handler."""


def advice(part: str) -> str:
    return (
        f"paramiko {metadata.version('paramiko')} has changed {part}, a private part on which "
        "provision/hosts/ssh (wire, streams, transport, closing, auth) or provision/testing/ssh "
        "relies. Compare paramiko's new code with the override, adapt it, run tests/ssh, then "
        "correct this list. Until then, keep the old release: lower the upper bound of paramiko "
        "in pyproject.toml and run: make lock"
    )


@pytest.mark.parametrize(
    ("owner", "name", "parameters"), METHODS, ids=[f"{c.__name__}.{n}" for c, n, _ in METHODS]
)
def test_paramiko_method_has_expected_parameters(
    owner: type, name: str, parameters: tuple[str, ...]
) -> None:
    method = getattr(owner, name, None)
    found = tuple(inspect.signature(method).parameters)[: len(parameters)] if method else None
    assert found == parameters, advice(f"{owner.__name__}.{name}")


def test_paramiko_objects_have_expected_fields() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport: Any = paramiko.Transport(ours)
        channel = paramiko.Channel(0)
        lacking = {name for name in TRANSPORT_FIELDS if not hasattr(transport, name)}
        assert lacking == set(), advice(f"Transport: {', '.join(sorted(lacking))}")
        lacking = {name for name in CHANNEL_FIELDS if not hasattr(channel, name)}
        assert lacking == set(), advice(f"Channel: {', '.join(sorted(lacking))}")
        assert isinstance(transport._channels, ChannelMap), advice("Transport._channels")
        transport.packetizer.close()
        stock: Any = paramiko.Transport
        assert isinstance(stock.preferred_keys, property), advice("Transport.preferred_keys")


def test_paramiko_dispatches_channel_messages_through_the_overridden_table() -> None:
    stock: Any = paramiko.Transport._channel_handler_table  # type: ignore[attr-defined]
    assert {number: stock[number].__name__ for number in HANDLERS} == HANDLERS, advice(
        "Transport._channel_handler_table"
    )
    assert set(stock) == set(Wire._channel_handler_table)


def test_paramiko_has_an_upper_bound_that_the_installed_release_meets() -> None:
    requirement = next(
        found for line in PROJECT["dependencies"] if (found := Requirement(line)).name == "paramiko"
    )
    assert any(part.operator == "<" for part in requirement.specifier)
    assert Version(metadata.version("paramiko")) in requirement.specifier
