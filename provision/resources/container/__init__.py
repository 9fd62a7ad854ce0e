"""The worker container, its siblings, and the absence of a container."""

from __future__ import annotations

from provision.resources.container.container import WORKSPACE, Container
from provision.resources.container.no_container import NoContainer
from provision.resources.container.siblings import Siblings

IS_RUNNING = "resources/container/running.sh"
"""The file of the shell function `is_running CONTAINER`."""
WORKER_FUNCTIONS = ("resources/container/siblings.sh", "resources/container/workers.sh")
"""For `uses`: the shell functions that list the worker containers of a host."""

__all__ = ["IS_RUNNING", "WORKER_FUNCTIONS", "WORKSPACE", "Container", "NoContainer", "Siblings"]
