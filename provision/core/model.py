"""Frozen records that travel through the program, and the two Protocols its edges implement. Pure."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from provision.core.errors import ProvisionError

Scalar: TypeAlias = str | int | float | bool | None
State: TypeAlias = Mapping[str, Scalar]
"""What is true of one thing on one host: a flat mapping of scalars."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where scripts are sent.

    `address` is an SSH host name or address, or `local` for this very machine. What is None
    (`port`, `user`, `identity`) is as ssh_config says; what is not goes before it. `host_key` is
    one line ("ssh-ed25519 AAAA…"); without it the key must be pinned in a known-hosts file.
    `key_alias` is the name under which the key is pinned (an instance id for a VM, since addresses
    are reused). `identity` is a private key file. `proxy` are the words of a program whose standard
    input and output are the connection, where there is no direct one.
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
        """True for this very machine, which needs no SSH."""
        return self.address == "local"

    @property
    def proxy_command(self) -> str:
        """`proxy` as ssh(1) takes it: a line for a shell, in which `%` begins a token."""
        return shlex.join(self.proxy).replace("%", "%%")


@dataclass(frozen=True)
class Facts:
    """What exchange 1 found on a host, before any resource is compared. Missing facts are empty strings or zero."""

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
    """Version of the loaded nvidia module, empty when none is."""
    boot_id: str = ""

    @property
    def is_cos(self) -> bool:
        """True on Container-Optimized OS (`ID=cos` in /etc/os-release; facts/cos_gce.md §1.2)."""
        return self.os_id == "cos"


class Status(enum.StrEnum):
    """How one resource on one host ended. In check mode `changed` reads: would change."""

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
    """The end of one resource on one host."""

    resource: str
    status: Status
    diff: tuple[Change, ...] = ()
    seconds: float = 0.0
    error: ProvisionError | None = None
    note: str = ""


@dataclass(frozen=True)
class HostReport:
    """The end of one host: one outcome per resource, in the recipe's order."""

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
        """The resources that changed; in check mode, those that would."""
        return tuple(
            outcome.resource for outcome in self.outcomes if outcome.status is Status.CHANGED
        )

    @property
    def failed(self) -> bool:
        """True when the host was not reached or a resource failed."""
        return self.error is not None or self.count(Status.FAILED) > 0

    def __str__(self) -> str:
        """Each resource with its status, then every error whole: for `assert not report.failed, str(report)`."""
        ends = [f"{outcome.resource}: {outcome.status}" for outcome in self.outcomes]
        errors = [
            str(error)
            for error in (self.error, *(outcome.error for outcome in self.outcomes))
            if error is not None
        ]
        return "\n".join([f"host {self.host}", *ends, *errors])


# --- events: what the engine says while it works; terminal, recap, JSON and journal subscribe -----


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
    """The host answered and authenticated us."""

    host: str
    seconds: float


@dataclass(frozen=True)
class ResourceStarted:
    """The `ensure` of a resource began on the host."""

    host: str
    resource: str


@dataclass(frozen=True)
class OutputLine:
    """One line that a command printed, as it happened. `resource` is empty outside of any resource."""

    host: str
    resource: str
    text: str


@dataclass(frozen=True)
class ResourceFinished:
    """A resource ended."""

    host: str
    outcome: Outcome


@dataclass(frozen=True)
class HostFinished:
    """A host ended."""

    report: HostReport


@dataclass(frozen=True)
class RunFinished:
    """The run ended; hosts that were never started are named."""

    reports: tuple[HostReport, ...]
    not_started: tuple[str, ...] = ()
    interrupted: bool = False


@dataclass(frozen=True)
class Note:
    """A line for people: a banner, a plan, a hint."""

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
    """One open way to run commands on one host (SSH connection or this machine)."""

    @property
    def host(self) -> Host:
        """The host this transport leads to."""
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
        """Run one command line in the login shell on one channel and stream what it prints.

        `stdin` is sent first; the channel's input stays open until the command ends (it is the
        lifeline). Returns the exit status. Raises `Unreachable` when the connection is lost before
        the status arrived and `CommandTimeout` when it did not arrive within `timeout_s` seconds;
        the channel is closed in both cases.
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
        """Like `exchange`, but the input ends after the last chunk (for a tar stream).

        Chunks that are no sequence may be long in coming: output is handed on meanwhile, and the
        end of the command is not held up.
        """
        ...

    def close(self) -> None:
        """End the connection; safe to call twice and from another thread."""
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
    """When it was started last; empty when the cloud does not say."""
    stopped: str = ""
    """When it was stopped last; empty when it never was, or the cloud does not say."""
    ttl_s: int | None = None
    """Seconds after which the cloud itself stops it, from each start; None = never."""
    stops_at: str = ""
    """When the cloud will stop or delete it, as the cloud says; empty when it does not run or has
    no limit."""
    termination_action: str = ""
    """What happens at the end of its time, or when it is pre-empted: STOP or DELETE."""
    provisioning_model: str = "STANDARD"
    disk_gb: int = 0
    """Size of its disks, Local SSDs left out, which the machine brings; 0 when the cloud does not
    say."""
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    ahead_s: float = field(default=0.0, compare=False)
    """Seconds by which the cloud's clock, which all of these times are of, was ahead of this
    machine's when this was read."""


NETWORK = "default"
"""The network that VMs are put into."""


@dataclass(frozen=True, kw_only=True)
class VmSpec:
    """What `vm.create` asks the cloud for. `ttl_s` is enforced by the cloud (maxRunDuration, then `termination_action`)."""

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
    """At the end of its time, and when a Spot VM is pre-empted: STOP or DELETE."""
    request_valid_s: int | None = None
    """How long a flex-start VM may wait for capacity, in each zone."""
    reservation: str | None = None
    """Name of the reservation that its capacity comes from."""


class Cloud(Protocol):
    """The few things asked of a cloud. Errors are `CloudError`s; nothing else leaves an implementation."""

    def create(self, spec: VmSpec, zone: str, *, request_id: str) -> Vm:
        """Insert the VM in `zone` and wait until it runs, or waits for capacity itself (status PENDING)."""
        ...

    def get(self, name: str, zone: str) -> Vm | None:
        """The VM, or None when there is none of this name in `zone`."""
        ...

    def list(self, labels: Mapping[str, str]) -> Sequence[Vm]:
        """All VMs of the project that carry `labels`, over all zones."""
        ...

    def delete(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the VM and wait until it is gone; False when there was none."""
        ...
