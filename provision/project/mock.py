"""The embedded mock of a project: its state folder, and its cloud and hosts, started on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provision.core.model import Host

MOCK_PROJECT = "mock-project"
BANNER = "mock: no project is set, so all of this is local and nothing is billed"


@dataclass(frozen=True)
class ProjectMock:
    """The mock whose state is in `folder`; `note_once` prints the banner on the first start."""

    folder: Path
    note_once: Callable[[str], None]

    @property
    def exists(self) -> bool:
        """True when the mock was started before, whether or not it runs now."""
        return self.folder.is_dir()

    @property
    def gcloud_path(self) -> Path:
        """The path of the program that opens tunnels to mock hosts, as `gcloud` does to VMs."""
        return self.folder.resolve() / "gcloud"

    def start(self) -> str:
        """Start the mock when it does not run; return its Compute Engine endpoint."""
        from provision.cloud.api.google_library import preload
        from provision.testing import background

        self.note_once(BANNER)
        return background.up(self.folder, meanwhile=preload).compute_endpoint

    def start_hosts(self, hosts: Sequence[Host]) -> list[Host]:
        """Start the mock when it does not run; return its hosts at their current ports.

        A stopped mock starts with its state, and its hosts listen on other ports.
        """
        from provision.testing import background

        self.note_once(BANNER)
        state = background.up(self.folder)
        return [replace(host, port=state.ssh_ports.get(host.name, host.port)) for host in hosts]

    def install_gcloud(self) -> None:
        """Write the program at `gcloud_path`."""
        from provision.testing import gcloud

        gcloud.install(self.folder)
