"""The Docker Engine of the host, registry login and images. Pure.

Sources: Google, "Running containers on instances" (/root is read-only, so Docker's configuration
lives elsewhere), the docker-credential-gcr README (`--registries`), Docker's CLI reference.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from provision.core.errors import ProbeUnreadable
from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import RemotePath, Script, fields, payload, script
from provision.resources.file import remember_disk_full

DOCKER_CONFIG = RemotePath("/var/lib/provision/docker")


@dataclass(frozen=True, kw_only=True)
class DockerEngine(Resource):
    """The Docker daemon answers."""

    wait_s: int = 60

    def probe(self) -> Script:
        """Ask it for its version."""
        return script(
            "echo \"version=$(docker version --format '{{.Server.Version}}' 2>/dev/null)\""
        )

    def read(self, text: str) -> State | None:
        """`{"running", "version"}`."""
        version = fields(text).get("version", "").strip()
        return {"running": bool(version), "version": version or None}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"running": True}`."""
        return {"running": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Start the service and wait until it answers."""
        return script(
            """
command -v docker >/dev/null || { echo "docker: not found"; exit 127; }
systemctl start docker
waited=0
until docker version --format '{{.Server.Version}}' 2>/dev/null; do
    test "$waited" -lt "$wait" || { docker version; exit 1; }
    waited=$((waited + 1))
    sleep 1
done
""",
            wait=self.wait_s,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """No Docker at all, or one that does not start."""
        if re.search(r"docker: (command )?not found|not found: docker", output):
            return Diagnosis(
                "this host has no Docker",
                "install Docker Engine on the host (Container-Optimized OS brings it)",
            )
        return Diagnosis(
            "the Docker daemon does not answer", "sudo journalctl -u docker -n 50   (on the host)"
        )


@dataclass(frozen=True, kw_only=True)
class RegistryLogin(Resource):
    """Docker asks `docker-credential-gcr` for the credentials of these registry hosts.

    The configuration lies in a folder of our own (`DOCKER_CONFIG`): under sudo the default is
    /root, which is read-only on Container-Optimized OS. Hosts without the helper (not
    Container-Optimized OS) are left alone.
    """

    registries: tuple[str, ...]

    def probe(self) -> Script:
        """Docker's configuration file."""
        return script(
            'test ! -r "$config/config.json" || cat "$config/config.json"', config=DOCKER_CONFIG
        )

    def read(self, text: str) -> State | None:
        """`{registry: helper}`."""
        if not text.strip():
            return {}
        try:
            helpers = json.loads(text).get("credHelpers") or {}
            return {str(host): str(helper) for host, helper in helpers.items()}
        except (ValueError, AttributeError) as error:
            file = f"{DOCKER_CONFIG}/config.json"
            fix = f"sudo rm {file}   (on the host)"
            raise ProbeUnreadable(
                "the configuration is not what Docker writes", where=file, why=str(error), fix=fix
            ) from error

    def desired(self, facts: Facts) -> State:
        """`gcr` for every registry, where the helper is part of the OS."""
        return dict.fromkeys(self.registries, "gcr") if facts.is_cos else {}

    def ensure(self, facts: Facts) -> Script | None:
        """`configure-docker` for exactly these hosts; nothing where there is no helper, at a boot neither."""
        if not facts.is_cos:
            return None
        return script(
            """
mkdir -p "$config"
chmod 0700 "$config"
DOCKER_CONFIG=$config docker-credential-gcr configure-docker --overwrite "--registries=$registries"
""",
            config=DOCKER_CONFIG,
            registries=",".join(self.registries),
        )


# Hosts without the credential helper keep the login that root has there. Older builds go once the
# new one is there, as long as no container is made of them, which Docker itself refuses: each is
# gigabytes. The new one keeps the layers they share.
_PULL = """
if test -r "$config/config.json"; then export DOCKER_CONFIG="$config"; fi
docker pull "$ref"
"""
_BUILD = """
if test -r "$config/config.json"; then export DOCKER_CONFIG="$config"; fi
printf '%s' "$context" | base64 -d | docker build --tag "$ref" --label "provision.context=$digest" -
docker image ls --format '{{.Repository}}:{{.Tag}}' "${ref%:*}" | while read -r old; do
    test "$old" = "$ref" || ! docker image rm "$old" >/dev/null 2>&1 || echo "removed $old, which no container uses"
done
"""


def _pull_diagnosis(output: str) -> Diagnosis | None:
    if re.search(
        r"(?i)manifest unknown|not found: manifest|manifest for .* not found|repository does not exist",
        output,
    ):
        return Diagnosis(
            "the registry has no such image",
            "check worker.image or worker.base_image: name, tag and registry",
        )
    if re.search(r"(?i)unauthori[sz]ed|denied|unauthenticated|no basic auth credentials", output):
        return Diagnosis(
            "the registry refused the VM's identity",
            "add its host to registries:, and grant its service account Artifact Registry Reader",
        )
    if re.search(
        r"(?i)Client\.Timeout|i/o timeout|no such host|connection refused|TLS handshake timeout",
        output,
    ):
        return Diagnosis(
            "the registry could not be reached from the host",
            "give the VM an external IP, Cloud NAT or Private Google Access",
        )
    return remember_disk_full(output)


@dataclass(frozen=True, kw_only=True)
class PulledImage(Resource):
    """An existing image, pulled through the credential helper. It is pulled where it is missing, not where a tag moved."""

    ref: str
    timeout_s: float = 1800.0

    def probe(self) -> Script:
        """Its id, where the host has it."""
        return script(
            'echo "id=$(docker image inspect -f \'{{.Id}}\' "$ref" 2>/dev/null)"', ref=self.ref
        )

    def read(self, text: str) -> State | None:
        """`{"present", "id"}`; None when absent."""
        image = fields(text).get("id", "").strip()
        return {"present": True, "id": image} if image else None

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"present": True}`."""
        return {"present": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """`docker pull` with our configuration."""
        return script(_PULL, config=DOCKER_CONFIG, ref=self.ref)

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """Wrong name, no permission, no way to the registry, full disk."""
        return _pull_diagnosis(output)


@dataclass(frozen=True, kw_only=True)
class BuiltImage(Resource):
    """An image built on the host from a context (a gzipped tar) that travels inside the script."""

    ref: str
    context: bytes = field(repr=False)
    digest: str
    timeout_s: float = 3600.0

    def probe(self) -> Script:
        """The digest of the context it was built from, kept as a label."""
        return script(
            'echo "context=$(docker image inspect -f \'{{index .Config.Labels "provision.context"}}\' "$ref" 2>/dev/null)"',
            ref=self.ref,
        )

    def read(self, text: str) -> State | None:
        """`{"context"}`; None when there is no such image."""
        digest = fields(text).get("context", "").strip()
        return {"context": digest} if digest else None

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"context": digest}`."""
        return {"context": self.digest}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """`docker build` from standard input."""
        return script(
            _BUILD,
            config=DOCKER_CONFIG,
            ref=self.ref,
            context=payload(self.context),
            digest=self.digest,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """A base image that cannot be had, or a full disk; otherwise the build's own last lines say it."""
        return _pull_diagnosis(output)
