"""`mock.status`: whether the embedded mock runs, where, and its hosts."""

from __future__ import annotations

from typing import Any

from provision.commands.shared.result import TaskResult
from provision.project.project import Project


def mock_status(project: Project) -> TaskResult:
    """Report whether the mock runs, its endpoint and its hosts; the exit status is always 0."""
    from provision.testing import background

    state_dir = project.mock.folder
    state = background.status(state_dir)
    document: dict[str, Any] = {"running": state is not None, "state": str(state_dir)}
    if state is None:
        return TaskResult(document, text="the mock is not running")
    document |= {
        "compute_endpoint": state.compute_endpoint,
        "pid": state.pid,
        "ssh_ports": dict(state.ssh_ports),
    }
    hosts = (
        ", ".join(f"{name} on port {port}" for name, port in state.ssh_ports.items()) or "no hosts"
    )
    return TaskResult(
        document, text=f"mock up: {state.compute_endpoint} (pid {state.pid}), {hosts}"
    )
