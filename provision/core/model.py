"""The records that modules exchange, and the protocols of transport and cloud. Pure."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from provision.core.errors import ProvisionError

Scalar: TypeAlias = str | int | float | bool | None
State: TypeAlias = Mapping[str, Scalar]
"""The state of one thing on one host: a flat mapping of scalars."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where scripts are sent.

    `address` is an SSH host name or address, or `local` for this machine. `port`, `user` and
    `identity` (a private key file) come from ssh_config where they are None. `host_key` is one
    line ("ssh-ed25519 AAAA…"); without it the key must be pinned in a known-hosts file. The key is
    pinned under `key_alias`: an instance id for a VM, since addresses are reused. `proxy` is a
    command whose standard input and output are the connection, where there is no direct one.
    `become` is "sudo" or "none".
    """

    name: str
    address: str
    port: int | None = None
    user: str | None = None
    identity: str | None = None
    host_key: str | None = None
    key_alias: str | None = None
    become: str = "sudo"
    driver: str | None = None
    driver_dir: str | None = None
    proxy: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """True for this machine, which needs no SSH."""
        return self.address == "local"

    @property
    def proxy_command(self) -> str:
        """`proxy` as ssh(1) takes it: a line for a shell, in which `%` begins a token."""
        return shlex.join(self.proxy).replace("%", "%%")


@dataclass(frozen=True)
class Facts:
    """What a host reports about itself before any resource is compared.

    A missing fact is an empty string or zero; `uid` is then -1.
    """

    os_id: str = ""
    os_version: str = ""
    build_id: str = ""
    arch: str = ""
    kernel: str = ""
    cpus: int = 0
    memory_mib: int = 0
    uid: int = -1
    user: str = ""
    gpus: tuple[str, ...] = ()
    """PCI addresses of NVIDIA display controllers."""
    driver_loaded: str = ""
    """Version of the loaded nvidia module; empty when it is not loaded."""
    boot_id: str = ""

    @property
    def is_cos(self) -> bool:
        """True on Container-Optimized OS (`ID=cos` in /etc/os-release)."""
        return self.os_id == "cos"


class Status(enum.StrEnum):
    """How one resource on one host ended. In check mode `changed` means: would change."""

    OK = "ok"
    CHANGED = "changed"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Change:
    """One differing key of a state: what was read and what is desired."""

    key: str
    actual: Scalar
    desired: Scalar


@dataclass(frozen=True)
class Outcome:
    """How one resource on one host ended."""

    resource: str
    status: Status
    diff: tuple[Change, ...] = ()
    seconds: float = 0.0
    error: ProvisionError | None = None
    note: str = ""


@dataclass(frozen=True)
class HostReport:
    """How one host ended: one outcome per resource, in the order of the recipe."""

    host: str
    outcomes: tuple[Outcome, ...] = ()
    round_trips: int = 0
    seconds: float = 0.0
    error: ProvisionError | None = None
    facts: Facts | None = None

    def count(self, status: Status) -> int:
        """How many resources ended with `status`."""
        return sum(outcome.status is status for outcome in self.outcomes)

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the resources that changed; in check mode, of those that would."""
        return tuple(
            outcome.resource for outcome in self.outcomes if outcome.status is Status.CHANGED
        )

    @property
    def failed(self) -> bool:
        """True when the host was not reached or a resource failed."""
        return self.error is not None or self.count(Status.FAILED) > 0

    def __str__(self) -> str:
        """Each resource with its status, then every error, as the message of an assertion."""
        ends = [f"{outcome.resource}: {outcome.status}" for outcome in self.outcomes]
        errors = [
            str(error)
            for error in (self.error, *(outcome.error for outcome in self.outcomes))
            if error is not None
        ]
        return "\n".join([f"host {self.host}", *ends, *errors])


# --- events: what a run reports while it works; terminal, recap, JSON and history subscribe -------


@dataclass(frozen=True)
class RunStarted:
    """A run over hosts begins."""

    hosts: tuple[str, ...]
    title: str
    check: bool = False


@dataclass(frozen=True)
class HostStarted:
    """The connection to a host is being opened."""

    host: str


@dataclass(frozen=True)
class HostConnected:
    """The connection to a host is open and authenticated."""

    host: str
    seconds: float


@dataclass(frozen=True)
class ResourceStarted:
    """The `ensure` of a resource began on the host."""

    host: str
    resource: str


@dataclass(frozen=True)
class OutputLine:
    """A line that a command has just printed. `resource` is empty outside of a resource."""

    host: str
    resource: str
    text: str


@dataclass(frozen=True)
class ResourceFinished:
    """A resource has its outcome."""

    host: str
    outcome: Outcome


@dataclass(frozen=True)
class HostFinished:
    """A host has its report."""

    report: HostReport


@dataclass(frozen=True)
class RunFinished:
    """The run ended. `not_started` are names of hosts."""

    reports: tuple[HostReport, ...]
    not_started: tuple[str, ...] = ()
    interrupted: bool = False


@dataclass(frozen=True)
class Note:
    """A line of text for people: a banner, a plan, a hint."""

    text: str
    host: str = ""


Event: TypeAlias = (
    RunStarted
    | HostStarted
    | HostConnected
    | ResourceStarted
    | OutputLine
    | ResourceFinished
    | HostFinished
    | RunFinished
    | Note
)
Emit: TypeAlias = Callable[[Event], None]
Sink: TypeAlias = Callable[[bytes], None]


# --- the edges ------------------------------------------------------------------------------------


class Transport(Protocol):
    """An open connection to one host, over SSH or to this machine."""

    @property
    def host(self) -> Host:
        """The host at the other end."""
        ...

    def exchange(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        """Run one command line in the login shell on one channel and return its exit status.

        `stdin` is sent first. The channel's input stays open until the command ends: its end means
        that the connection is gone. Raises `Unreachable` when the connection is lost before the
        status has arrived, and `CommandTimeout` when that takes more than `timeout_s` seconds. The
        channel is closed in both cases.
        """
        ...

    def send(
        self,
        command: str,
        chunks: Iterable[bytes],
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        """Like `exchange`, but the input ends after the last chunk, as for a tar stream.

        An iterator may block between two chunks: output is passed on and the end of the command is
        noticed meanwhile.
        """
        ...

    def close(self) -> None:
        """Close the connection. May be called twice and from another thread."""
        ...


@dataclass(frozen=True, kw_only=True)
class Vm:
    """A virtual machine as the cloud describes it."""

    name: str
    zone: str
    status: str
    machine_type: str
    gpu: str | None = None
    gpu_count: int = 0
    address: str | None = None
    internal_address: str | None = None
    instance_id: str = ""
    created: str = ""
    started: str = ""
    """When it was last started; empty when the cloud does not report it."""
    stopped: str = ""
    """When it was last stopped; empty when it never was or the cloud does not report it."""
    ttl_s: int | None = None
    """Seconds after each start at which the cloud stops it; None for no limit."""
    stops_at: str = ""
    """When the cloud will stop or delete it, as it reports; empty when the VM does not run or has
    no limit."""
    termination_action: str = ""
    """What the cloud does at the time limit or at pre-emption: STOP or DELETE."""
    provisioning_model: str = "STANDARD"
    disk_gb: int = 0
    """Size of its disks without Local SSDs, which belong to the machine type; 0 when the cloud
    does not report it."""
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    ahead_s: float = field(default=0.0, compare=False)
    """Seconds by which the cloud's clock was ahead of this machine's when the VM was read. All of
    these times are the cloud's."""


NETWORK = "default"
"""The network of every VM."""


@dataclass(frozen=True, kw_only=True)
class VmSpec:
    """The VM that `vm.create` requests.

    The cloud enforces `ttl_s` (`maxRunDuration`) and then takes the `termination_action`.
    """

    name: str
    machine_type: str
    gpu: str | None
    gpu_count: int
    disk_gb: int
    image: str
    image_project: str
    ttl_s: int | None
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    service_account: str = "default"
    scopes: tuple[str, ...] = ("https://www.googleapis.com/auth/cloud-platform",)
    network: str = f"global/networks/{NETWORK}"
    external_ip: bool = True
    provisioning_model: str = "STANDARD"
    """STANDARD, SPOT, FLEX_START or RESERVATION_BOUND."""
    termination_action: str = "STOP"
    """What the cloud does at the time limit, and when it pre-empts a Spot VM: STOP or DELETE."""
    request_valid_s: int | None = None
    """Seconds that a flex-start VM may wait for capacity in each zone."""
    reservation: str | None = None
    """Name of the reservation that provides its capacity."""
