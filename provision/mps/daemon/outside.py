"""Who uses the GPU outside MPS although a daemon answers: a program that began before it did. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.errors import ProvisionError
from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import Script
from provision.mps.status.status import read_status, status_script
from provision.report.text import counted
from provision.resources.driver import DRIVER_DIR

_NAMED = 4
"""So many programs are named; `mps.status` lists all."""


@dataclass(frozen=True, kw_only=True)
class MpsOutside(Resource):
    """Told, and nothing more: only a new start brings a program into MPS, and when that may be is for its user to say.

    `container`, `worker`, `gpu` as in `MpsDaemon`; `directory` is the driver's folder.
    """

    container: str
    worker: str = ""
    gpu: str = ""
    directory: str = DRIVER_DIR.path

    def probe(self) -> Script:
        """Clients, and who holds the GPU; nothing where that is MPS alone."""
        return status_script(
            self.container,
            worker=self.worker,
            device=self.gpu,
            users=True,
            if_others=True,
            driver_dir=self.directory,
        )

    def read(self, text: str) -> State:
        """`{"outside"}`, the programs in words; none where no daemon answers, or the GPU's tables cannot be read."""
        try:
            status = read_status(text)
        except ProvisionError:
            return {"outside": ""}
        if not status.daemon:
            return {"outside": ""}
        named = [
            f"{user.pid} {user.command}" + (f" ({user.container})" if user.container else "")
            for user in status.outside
        ]
        more = f"; {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        head = f"{counted(len(named), 'program')}: " if len(named) > 1 else ""
        return {"outside": f"{head}{'; '.join(named[:_NAMED])}{more}"}

    def remark(self, actual: State | None) -> str:
        """Who has to be started again."""
        outside = (actual or {}).get("outside")
        return f"uses the GPU outside MPS until it is started again: {outside}" if outside else ""

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """Whatever it is."""
        return {}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Nothing."""
        return None
