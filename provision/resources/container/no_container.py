"""The absence of a container. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import Script, script

_PROBE = 'docker container inspect -f "$format" "$name" 2>/dev/null || true'
_REMOVE = """
docker stop --time 10 "$name"
docker rm --force "$name"
test "$#" -eq 0 || docker volume rm "$@" || true
"""


@dataclass(frozen=True, kw_only=True)
class NoContainer(Resource):
    """No container of this name, and none of its `volumes`.

    A container of that name that provision did not make is left alone.
    """

    container: str
    volumes: tuple[str, ...] = ()

    def probe(self) -> Script:
        """Print the container's id and its label `provision.spec`; nothing without a container."""
        record = '{{.Id}}|{{index .Config.Labels "provision.spec"}}'
        return script(_PROBE, name=self.container, format=record)

    def read(self, text: str) -> State | None:
        """`{"id"}`; None where provision made no such container."""
        identity, _, spec = text.strip().partition("|")
        return {"id": identity} if spec else None

    def desired(self, facts: Facts) -> State | None:  # noqa: ARG002
        """Absent."""
        return None

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Stop the container, so that its programs can end, and remove it; keep the volume."""
        return script(_REMOVE, argv=self.volumes, name=self.container)
