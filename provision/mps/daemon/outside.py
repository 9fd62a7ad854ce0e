"""Report programs that use the GPU outside MPS because they started before the daemon did. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.errors import ProvisionError
from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import Script
from provision.mps.status.status import read_status, status_script
from provision.report.text import count_phrase
from provision.resources.driver import DRIVER_DIR

_MAX_LISTED = 4
"""How many programs the remark lists; `mps.status` lists all."""


@dataclass(frozen=True, kw_only=True)
class MpsOutside(Resource):
    """Programs outside MPS, reported and left alone.

    Only a restart brings a program into MPS, and its user decides when. `container`, `worker` and
    `gpu` as in `MpsDaemon`; `directory` is the driver's folder.
    """

    container: str
    worker: str = ""
    gpu: str = ""
    directory: str = DRIVER_DIR.path

    def probe(self) -> Script:
        """Print clients and users of the GPU; nothing where MPS alone uses it."""
        return status_script(
            self.container,
            worker=self.worker,
            device=self.gpu,
            users=True,
            if_others=True,
            driver_dir=self.directory,
        )

    def read(self, text: str) -> State:
        """`{"outside"}`, the programs as text; empty where no daemon answers."""
        try:
            status = read_status(text)
        except ProvisionError:
            return {"outside": ""}
        if not status.daemon:
            return {"outside": ""}
        programs = [str(user) for user in status.outside]
        head = f"{count_phrase(len(programs), 'program')}: " if len(programs) > 1 else ""
        more = f"; {len(programs) - _MAX_LISTED} more" if len(programs) > _MAX_LISTED else ""
        return {"outside": f"{head}{'; '.join(programs[:_MAX_LISTED])}{more}"}

    def remark(self, actual: State | None) -> str:
        """The programs that have to be restarted."""
        outside = (actual or {}).get("outside")
        return f"uses the GPU outside MPS until it is started again: {outside}" if outside else ""

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{}`: every state is accepted."""
        return {}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """None: there is nothing to change."""
        return None
