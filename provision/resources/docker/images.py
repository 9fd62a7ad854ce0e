"""Images on a host: pulled from a registry, or built there. Pure.

Source: Docker's CLI reference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Script, fields, payload, script
from provision.resources.docker.login import DOCKER_CONFIG
from provision.resources.file import diagnose_full_disk

HERE = Path(__file__).parent
_PROBE_PULLED = 'echo "id=$(docker image inspect -f "$format" "$ref" 2>/dev/null)"'
_PROBE_BUILT = 'echo "context=$(docker image inspect -f "$format" "$ref" 2>/dev/null)"'
# A host without a credential helper has no file there and keeps the login that root has.
_PULL = """
if test -r "$config/config.json"; then export DOCKER_CONFIG="$config"; fi
docker pull "$ref"
"""


@dataclass(frozen=True, kw_only=True)
class PulledImage(Resource):
    """An image of a registry. It is pulled where it is missing, not where a tag moved."""

    ref: str
    timeout_s: float = 1800.0

    def probe(self) -> Script:
        """Print its id, where the host has it."""
        return script(_PROBE_PULLED, ref=self.ref, format="{{.Id}}")

    def read(self, text: str) -> State | None:
        """`{"present", "id"}`; None where the host lacks it."""
        image = fields(text).get("id", "").strip()
        return {"present": True, "id": image} if image else None

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"present": True}`."""
        return {"present": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Pull the image, with the login of `RegistryLogin`."""
        return script(_PULL, config=DOCKER_CONFIG, ref=self.ref)

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """No such image, no permission, no route to the registry, full disk."""
        return diagnose_registry(output)


@dataclass(frozen=True, kw_only=True)
class BuiltImage(Resource):
    """An image built on the host from `context`, a gzipped tar that travels inside the script."""

    ref: str
    context: bytes = field(repr=False)
    digest: str
    timeout_s: float = 3600.0

    def probe(self) -> Script:
        """Print the digest of the context that it was built from; a label of the image keeps it."""
        label = '{{index .Config.Labels "provision.context"}}'
        return script(_PROBE_BUILT, ref=self.ref, format=label)

    def read(self, text: str) -> State | None:
        """`{"context"}`; None where the host lacks it."""
        digest = fields(text).get("context", "").strip()
        return {"context": digest} if digest else None

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"context": digest}`."""
        return {"context": self.digest}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Build the image, and remove older builds that no container uses."""
        return script(
            HERE / "build.sh",
            config=DOCKER_CONFIG,
            ref=self.ref,
            context=payload(self.context),
            digest=self.digest,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """A base image that cannot be pulled, or a full disk."""
        return diagnose_registry(output)


def diagnose_registry(output: str) -> Diagnosis | None:
    """The meaning of what a failed pull printed: image, permission, route to it, full disk."""
    if re.search(
        r"(?i)manifest unknown|not found: manifest|manifest for .* not found"
        r"|repository does not exist",
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
    return diagnose_full_disk(output)
