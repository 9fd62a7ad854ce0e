"""The Docker Engine of a host. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Script, fields, script

HERE = Path(__file__).parent
_PROBE = "echo \"version=$(docker version --format '{{.Server.Version}}' 2>/dev/null)\""


@dataclass(frozen=True, kw_only=True)
class DockerEngine(Resource):
    """The Docker daemon answers."""

    wait_s: int = 60

    def probe(self) -> Script:
        """Ask the daemon for its version."""
        return script(_PROBE)

    def read(self, text: str) -> State | None:
        """`{"running", "version"}`."""
        version = fields(text).get("version", "").strip()
        return {"running": bool(version), "version": version or None}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"running": True}`."""
        return {"running": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Start the service and wait until it answers."""
        return script(HERE / "start.sh", wait=self.wait_s)

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """No Docker on the host, or a daemon that does not start."""
        if re.search(r"docker: (command )?not found|not found: docker", output):
            return Diagnosis(
                "this host has no Docker",
                "install Docker Engine on the host (Container-Optimized OS brings it)",
            )
        return Diagnosis(
            "the Docker daemon does not answer", "sudo journalctl -u docker -n 50   (on the host)"
        )
