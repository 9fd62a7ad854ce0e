"""The worker container, its siblings, and the absence of a container.

The shell functions of `siblings.sh` and `running.sh` are for every script that looks at the
worker's containers: name the file in `uses`.
"""

from __future__ import annotations

from provision.resources.container.container import WORKSPACE, Container
from provision.resources.container.no_container import NoContainer
from provision.resources.container.siblings import Siblings

__all__ = ["WORKSPACE", "Container", "NoContainer", "Siblings"]
