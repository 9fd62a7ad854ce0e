"""The embedded mock as a background process: started on demand, looked at, stopped. The only importer of `provision.testing`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.app.session import Done, Session
from provision.model import Host

MOCK_PROJECT = "mock-project"
BANNER = "mock: no project is set, so all of this is local and nothing is billed"


def _folder(session: Session) -> Path:
    return session.home / "mock"


def endpoint(session: Session) -> str:
    """Where the emulator listens; the mock is started when it does not run."""
    from provision.cloud.client import preload
    from provision.testing import daemon

    session.say_once(BANNER)
    return daemon.up(_folder(session), meanwhile=preload).compute_endpoint


def exists(session: Session) -> bool:
    """True when this project has a mock, whether or not it runs."""
    return _folder(session).is_dir()


def refreshed(session: Session, hosts: Sequence[Host]) -> list[Host]:
    """The mock hosts where they listen now: a mock that was stopped comes up again, with its state, on other ports."""
    from provision.testing import daemon

    session.say_once(BANNER)
    state = daemon.up(_folder(session))
    return [replace(host, port=state.ssh_ports.get(host.name, host.port)) for host in hosts]


def gcloud(session: Session) -> str:
    """The path of a program that opens tunnels to mock hosts as `gcloud` does to VMs."""
    from provision.testing import gcloud as stand_in

    return str(stand_in.install(_folder(session)))


def mock_up(session: Session) -> Done:
    """Start it, or find it running."""
    from provision.testing import daemon

    state = daemon.up(_folder(session))
    document = {"compute_endpoint": state.compute_endpoint, "state": str(_folder(session)), "pid": state.pid}
    return Done(document, text=f"mock up: {state.compute_endpoint} (state in {_folder(session)})")


def mock_status(session: Session) -> Done:
    """Whether it runs, where, and its hosts. Exit status 0 either way: not running is no failure."""
    from provision.testing import daemon

    state = daemon.status(_folder(session))
    document: dict[str, Any] = {"running": state is not None, "state": str(_folder(session))}
    if state is None:
        return Done(document, text="the mock is not running")
    document |= {"compute_endpoint": state.compute_endpoint, "pid": state.pid, "ssh_ports": dict(state.ssh_ports)}
    hosts = ", ".join(f"{name} on port {port}" for name, port in state.ssh_ports.items()) or "no hosts"
    return Done(document, text=f"mock up: {state.compute_endpoint} (pid {state.pid}), {hosts}")


def mock_down(session: Session) -> Done:
    """Stop it; its state stays."""
    from provision.testing import daemon

    stopped = daemon.down(_folder(session))
    return Done({"stopped": stopped}, text="the mock is stopped" if stopped else "the mock was not running")
