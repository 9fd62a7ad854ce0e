"""A mock cloud: the Compute Engine emulator with a mock host for every running instance."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from provision.cloud.api import oslogin
from provision.core.files import SHARED, write_atomically
from provision.testing.compute import ComputeEmulator
from provision.testing.mock_host import MockHost

_SAFE = re.compile(r"[a-z0-9-]+\Z")
_WATCH_PERIOD_S = 0.2


def authorized_keys(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(user, public key line) pairs of the metadata `ssh-keys`, as the guest agent reads them."""
    pairs = (line.strip().partition(":") for line in metadata.get("ssh-keys", "").splitlines())
    return tuple((user, key) for user, colon, key in pairs if colon and len(key.split()) >= 2)


class MockHosts:
    """The mock hosts of a cloud by (zone, name), which the emulator boots, halts and destroys.

    Their disks lie under `folder`. The callbacks report what guests do: `publish` an attribute,
    `print_serial`, `guest_stopped`, `on_activity`; `logins` returns the OS Login keys.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[tuple[str, str], MockHost] = {}
        self.publish: Callable[[str, str, str, str], None] = lambda *_: None
        self.print_serial: Callable[[str, str, str], None] = lambda *_: None
        self.guest_stopped: Callable[[str, str], None] = lambda *_: None
        self.on_activity: Callable[[], None] = lambda: None
        self.logins: Callable[[], tuple[tuple[str, str], ...]] = tuple
        self._os_login: set[tuple[str, str]] = set()
        self._seen: dict[tuple[str, str], tuple[int, dict[str, str]]] = {}

    def _disk(self, name: str, zone: str) -> Path:
        if not _SAFE.match(name) or not _SAFE.match(zone):
            raise ValueError(f"not a name of an instance or zone: {zone}/{name}")
        return self.folder / zone / name

    def boot(
        self, name: str, zone: str, metadata: dict[str, str], gpu: str | None, gpu_count: int
    ) -> tuple[str, int]:
        """Start the host on its disk; return address and port of its SSH server.

        Raises `ValueError` for a name that is not safe in a path, and `MockHostError`.
        """
        disk = self._disk(name, zone)
        record = disk / "port"
        uses_os_login = oslogin.is_enabled(metadata)
        keys = self.logins() if uses_os_login else authorized_keys(metadata)
        host = MockHost(
            name=name,
            user=keys[0][0] if keys else "user",
            gpu=gpu,
            gpu_count=gpu_count,
            folder=disk,
            authorize=() if uses_os_login else keys,
            metadata=metadata,
            port=int(record.read_text()) if record.exists() else 0,
        )
        host.start()
        if uses_os_login:
            host.access.look_up = self.logins
            for user in {user for user, _ in keys}:
                host.make_home(user)
        record.write_text(str(host.host.port))
        host.server.on_activity = self.on_activity
        (host.state / "watched").touch()
        self.running[zone, name] = host
        (self._os_login.add if uses_os_login else self._os_login.discard)((zone, name))
        if metadata.get("enable-guest-attributes", "").upper() == "TRUE" and (
            key := host.host.host_key
        ):
            kind, _, data = key.partition(" ")
            self.publish(name, zone, f"hostkeys/{kind}", data)
        return "127.0.0.1", host.server.port

    def make_login_home(self, user: str) -> None:
        """Create the home of an OS Login user on the hosts that use OS Login."""
        for key, host in list(self.running.items()):
            if key in self._os_login:
                host.make_home(user)

    def halt(self, name: str, zone: str) -> None:
        """Stop the host and keep its disk."""
        if (host := self.running.get((zone, name))) is not None:
            self._report_guest(name, zone, host)
            del self.running[zone, name]
            host.stop()
        self._seen.pop((zone, name), None)

    def destroy(self, name: str, zone: str) -> None:
        """Remove the host and its disk."""
        host = self.running.pop((zone, name), None) or MockHost(
            name=name, folder=self._disk(name, zone)
        )
        self._seen.pop((zone, name), None)
        host.destroy()

    def watch(self) -> None:
        """Reboot and power off hosts that asked for it; report their attributes and consoles."""
        for (zone, name), host in list(self.running.items()):
            if (host.state / "poweroff").exists():
                (host.state / "poweroff").unlink()
                with suppress(KeyError):  # another request stopped it at the same time
                    self.guest_stopped(name, zone)
                continue
            if (host.state / "reboot").exists():
                (host.state / "reboot").unlink()
                host.reboot()
            self._report_guest(name, zone, host)

    def _report_guest(self, name: str, zone: str, host: MockHost) -> None:
        """Report new console output and changed guest attributes."""
        position, known = self._seen.get((zone, name), (0, {}))
        text = host.console
        if len(text) > position:
            self.print_serial(name, zone, text[position:])
        attributes = host.guest_attributes
        for key, value in attributes.items():
            if known.get(key) != value:
                self.publish(name, zone, key, value)
        self._seen[zone, name] = (len(text), attributes)

    def stop(self) -> None:
        """Stop every host and keep the disks."""
        for zone, name in list(self.running):
            self.halt(name, zone)


class MockCloud:
    """The emulator and its hosts.

        with MockCloud(tmp_path) as cloud:
            options = {"api_endpoint": cloud.endpoint}
            client = InstancesClient(credentials=AnonymousCredentials(), client_options=options)

    State lies under `folder`; the next MockCloud there restores it, and instances that ran boot
    again.
    """

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.folder = folder
        self.hosts = MockHosts(folder / "hosts")
        self.emulator = ComputeEmulator(self.hosts, port=port)
        self.hosts.publish = self.emulator.publish
        self.hosts.logins = lambda: self.emulator.logins.keys
        self.emulator.logins.on_import = self.hosts.make_login_home
        self.hosts.print_serial = self.emulator.print_serial
        self.hosts.guest_stopped = self.emulator.guest_stopped
        self.on_change: Callable[[], None] = lambda: None
        self._record = folder / "world.json"
        self._written = ""
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="mock-cloud", daemon=True)

    @property
    def endpoint(self) -> str:
        """The `api_endpoint` for Compute Engine clients."""
        return self.emulator.endpoint

    @property
    def ssh_ports(self) -> dict[str, int]:
        """The SSH port of each running host, by instance name."""
        return {name: host.server.port for (_, name), host in list(self.hosts.running.items())}

    def host(self, name: str) -> MockHost:
        """The running host of that instance name. Raises `KeyError` when there is none."""
        found = next(
            (host for (_, known), host in self.hosts.running.items() if known == name), None
        )
        if found is None:
            raise KeyError(name)
        return found

    def start(self) -> Self:
        """Serve, with the instances of an earlier run restored; an error stops it and is raised."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.emulator.start()
        try:
            if self._record.exists():
                self.emulator.restore(json.loads(self._record.read_text()))
            self._watcher.start()
        except BaseException:
            self.emulator.stop(keep=True)
            raise
        return self

    def stop(self) -> None:
        """Stop serving and stop the hosts; state and disks stay."""
        self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join(10)
        self.save()
        self.emulator.stop(keep=True)
        self.hosts.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def save(self) -> None:
        """Write the emulator's state to `world.json` if it changed."""
        text = json.dumps(self.emulator.snapshot())
        if text == self._written:
            return
        write_atomically(self._record, text, mode=SHARED)
        self._written = text
        self.on_change()

    def _watch(self) -> None:
        while not self._stopping.wait(_WATCH_PERIOD_S):
            self.emulator.tick()
            self.hosts.watch()
            self.save()
