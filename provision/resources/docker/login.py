"""The login of Docker to image registries. Pure.

Sources: Google, "Running containers on instances" (/root is read-only, so Docker's configuration
lives elsewhere); the docker-credential-gcr README (`--registries`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from provision.core.errors import ProbeUnreadable
from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import RemotePath, Script, script

DOCKER_CONFIG = RemotePath("/var/lib/provision/docker")
"""The folder of Docker's configuration. The default under sudo is /root, which is read-only on
Container-Optimized OS."""
_PROBE = 'test ! -r "$config/config.json" || cat "$config/config.json"'
_LOG_IN = """
mkdir -p "$config"
chmod 0700 "$config"
export DOCKER_CONFIG="$config"
docker-credential-gcr configure-docker --overwrite "--registries=$registries"
"""


@dataclass(frozen=True, kw_only=True)
class RegistryLogin(Resource):
    """Docker asks `docker-credential-gcr` for the credentials of these registry hosts.

    The helper is a part of Container-Optimized OS. On other hosts nothing is configured.
    """

    registries: tuple[str, ...]

    def probe(self) -> Script:
        """Print Docker's configuration file."""
        return script(_PROBE, config=DOCKER_CONFIG)

    def read(self, text: str) -> State | None:
        """`{registry: helper}`. Raises `ProbeUnreadable` for a file that Docker did not write."""
        if not text.strip():
            return {}
        try:
            helpers = json.loads(text).get("credHelpers") or {}
            return {str(host): str(helper) for host, helper in helpers.items()}
        except (ValueError, AttributeError) as error:
            file = f"{DOCKER_CONFIG}/config.json"
            raise ProbeUnreadable(
                "the configuration is not what Docker writes",
                where=file,
                why=str(error),
                fix=f"sudo rm {file}   (on the host)",
            ) from error

    def desired(self, facts: Facts) -> State:
        """`gcr` for every registry on Container-Optimized OS; elsewhere nothing."""
        return dict.fromkeys(self.registries, "gcr") if facts.is_cos else {}

    def ensure(self, facts: Facts) -> Script | None:
        """Configure Docker for exactly these hosts; None where the helper is missing."""
        if not facts.is_cos:
            return None
        return script(_LOG_IN, config=DOCKER_CONFIG, registries=",".join(self.registries))
