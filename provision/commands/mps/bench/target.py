"""Where a benchmark runs its cells: in the worker container, or with a container for each worker, as the topology has it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from provision.commands.mps.bench.options import Asked, words_of
from provision.commands.shared import remote_exec
from provision.core import durations
from provision.core.errors import CommandTimeout
from provision.core.job import script_command
from provision.core.model import Transport
from provision.core.shell import Script, script
from provision.mps.bench import cell_script, grid
from provision.mps.bench.cell import Cell, CellFailed, Sample, read_cell
from provision.mps.bench.grid import Key
from provision.project.project import Project
from provision.resources.container import WORKSPACE

CELL_TIMEOUT_S = 1800.0
TIDY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Place:
    """The containers that are measured in."""

    project: Project
    transport: Transport
    about: dict[str, str]
    """What the first worker's container said of itself and of the GPU."""
    workload: str
    limit: int | None = None
    """Clients that a server of MPS takes; None where GPU or driver do not say."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """By which the processes of its cells are found."""

    @property
    def container(self) -> str:
        """In which a cell runs, its daemon included."""
        return self.project.settings.worker.name

    @property
    def apart(self) -> bool:
        """Each client runs in a container of its own. All of them see the processes of one another, and one workspace."""
        return self.project.settings.mps.topology == "containers"

    @property
    def workers(self) -> list[str]:
        """In which the clients run where they are apart."""
        return self.about.get("boxes", "").split()

    @property
    def folder(self) -> str:
        """What a cell writes, where every container sees it; short, as a socket's path has 108 bytes at most."""
        return f"{WORKSPACE if self.apart else '/tmp'}/.provision-bench-{self.token[:8]}"  # noqa: S108 - in the container

    @property
    def gpu(self) -> str:
        """UUID of the GPU where the machine has several; empty where it has one."""
        return self.about.get("gpu", "").strip()

    @property
    def cpus(self) -> tuple[int, ...]:
        """The cores that a worker may run on."""
        return grid.cpu_list(self.about.get("cpus", ""))

    def pins(self, asked: Asked) -> bool:
        """Whether each client is kept on cores of its own."""
        return asked.pinned and self.about.get("taskset") == "yes"

    def put(self, source: bytes) -> None:
        """Bring the built-in program there."""
        body = cell_script.place_workload(self.container, self.folder, source)
        remote_exec.checked(self.transport, body, "sending the program", timeout_s=60.0)

    def run(self, asked: Asked, key: Key, steps: int) -> tuple[Sample, float]:
        """One cell, once: its sample, and how long it took in all, in seconds. Raises `CellFailed` where it gave no figure."""
        one = self._cell(asked, key, steps)
        out, err = bytearray(), bytearray()
        command, stdin = script_command(self._script(one), become=self.transport.host.become)
        started = time.monotonic()
        try:
            status = self.transport.exchange(
                command, stdin, on_stdout=out.extend, on_stderr=err.extend, timeout_s=CELL_TIMEOUT_S
            )
        except CommandTimeout as error:
            self.end()
            shorter = (
                "--command with a program that ends sooner"
                if asked.fixed
                else "--steps with a smaller number"
            )
            raise CellFailed(
                f"no end within {durations.rounded(CELL_TIMEOUT_S)}",
                where=str(key),
                why="it was ended",
                fix=shorter,
            ) from error
        seconds = time.monotonic() - started
        text = out.decode("utf-8", "replace")
        if status != 0:
            why = (err.decode("utf-8", "replace") or text)[-500:].strip()
            raise CellFailed(f"the cell ended with status {status}", where=str(key), why=why)
        return read_cell(text, one, str(key)), seconds

    def _cell(self, asked: Asked, key: Key, steps: int) -> Cell:
        cpus, most = self.cpus, max(asked.clients)
        built_in = ("python3", f"{self.folder}/workload.py")
        return Cell(
            clients=key.clients,
            percentage=key.percentage,
            steps=steps,
            threads=grid.threads_each(len(cpus) or 1, most),
            cores=grid.core_sets(cpus if self.pins(asked) else (), key.clients, most),
            words=built_in
            if asked.command is None
            else words_of(asked.command.replace("{steps}", str(steps))),
            waits=asked.command is None,
            gpu=self.gpu,
        )

    def _script(self, one: Cell) -> Script:
        folder = f"{self.folder}/cell"
        if not self.apart:
            return remote_exec.in_container(
                self.container, cell_script.in_container(one, folder), self.token
            )
        return cell_script.apart(
            one,
            folder,
            container=self.container,
            workers=self.workers,
            directory=WORKSPACE,
            token=self.token,
            end=remote_exec.END,
        )

    def end(self) -> None:
        """End what still runs of a cell: the next one is to have the GPU to itself."""
        body = script(
            'docker exec "$name" sh -c "$end" provision "$token"',
            name=self.container,
            end=remote_exec.END,
            token=self.token,
        )
        remote_exec.checked(self.transport, body, "ending a cell", timeout_s=TIDY_TIMEOUT_S)

    def tidy(self) -> None:
        """Remove what cells wrote."""
        body = script(
            'docker exec "$name" rm -rf "$folder"', name=self.container, folder=self.folder
        )
        remote_exec.checked(
            self.transport, body, "removing the benchmark's files", timeout_s=TIDY_TIMEOUT_S
        )
