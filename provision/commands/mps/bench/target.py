"""The containers in which a benchmark runs its cells, and one run of a cell in them."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from provision.commands.mps.bench.options import BenchOptions, command_words
from provision.commands.shared.run_script import run_script
from provision.commands.shared.user_program.run import end_text, program_script
from provision.core import durations
from provision.core.errors import CommandTimeout
from provision.core.job import script_command
from provision.core.model import Transport
from provision.core.shell import Script, script
from provision.mps.bench.cell import Cell, CellFailed, Sample, read_cell
from provision.mps.bench.cell_script import (
    cell_on_host_script,
    cell_words,
    write_workload_script,
)
from provision.mps.bench.cores import core_sets, threads_per_client
from provision.mps.bench.grid import CellKey
from provision.mps.bench.target_facts import TargetFacts
from provision.project.project import Project
from provision.resources.container import WORKSPACE

CELL_TIMEOUT_S = 1800.0
_SCRIPT_TIMEOUT_S = 60.0
_SHOWN_CHARS = 500


def new_token() -> str:
    """A random token that marks the processes of one benchmark."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class BenchTarget:
    """The containers of one host, and an open connection to it."""

    project: Project
    transport: Transport
    facts: TargetFacts
    workload: str
    """The built-in program: `mlp` or `driver`."""
    token: str
    """Marks the processes of its cells, in the environment variable PROVISION_RUN."""
    client_limit: int | None
    """Clients that an MPS server takes; None where GPU or driver is not known."""

    @property
    def container(self) -> str:
        """The container in which a cell and its daemon run."""
        return self.project.settings.worker.name

    @property
    def has_container_per_worker(self) -> bool:
        """True where each client runs in a container of its own.

        The containers share the PID namespace and the workspace.
        """
        return self.project.settings.mps.topology == "containers"

    @property
    def folder(self) -> str:
        """The folder of the benchmark, which every container sees.

        Short, since the path of a socket in it has 108 bytes at most.
        """
        parent = WORKSPACE if self.has_container_per_worker else "/tmp"  # noqa: S108 - in the container
        return f"{parent}/.provision-bench-{self.token[:8]}"

    def is_pinned(self, options: BenchOptions) -> bool:
        """True where each client is kept on cores of its own."""
        return options.pinned and self.facts.has_taskset

    def send_workload(self, source: bytes) -> None:
        """Write the built-in program into the container. Raises `CommandFailed`."""
        body = write_workload_script(self.container, self.folder, source)
        self._run_script(body, "sending the program")

    def run_cell(self, options: BenchOptions, key: CellKey, steps: int) -> tuple[Sample, float]:
        """Run one cell once: its sample, and the seconds that it took in all.

        Raises `CellFailed` where it gave no figure, and errors of the connection.
        """
        cell = self._cell(options, key, steps)
        out, err = bytearray(), bytearray()
        command, stdin = script_command(self._cell_script(cell), become=self.transport.host.become)
        started = time.monotonic()
        try:
            status = self.transport.exchange(
                command, stdin, on_stdout=out.extend, on_stderr=err.extend, timeout_s=CELL_TIMEOUT_S
            )
        except CommandTimeout as error:
            self.end_cell()
            raise _timed_out(options, key) from error
        seconds = time.monotonic() - started
        text = out.decode("utf-8", "replace")
        if status != 0:
            why = (err.decode("utf-8", "replace") or text)[-_SHOWN_CHARS:].strip()
            raise CellFailed(f"the cell ended with status {status}", where=str(key), why=why)
        return read_cell(text, cell, str(key)), seconds

    def end_cell(self) -> None:
        """End what still runs of a cell. Raises `CommandFailed` and errors of the connection."""
        body = script(
            'docker exec "$name" sh -c "$end" provision "$token"',
            name=self.container,
            end=end_text(),
            token=self.token,
        )
        self._run_script(body, "ending a cell")

    def remove_files(self) -> None:
        """Remove the benchmark's folder. Raises `CommandFailed` and errors of the connection."""
        body = script(
            'docker exec "$name" rm -rf "$folder"', name=self.container, folder=self.folder
        )
        self._run_script(body, "removing the benchmark's files")

    def _run_script(self, body: Script, purpose: str) -> None:
        run_script(self.transport, body, purpose, timeout_s=_SCRIPT_TIMEOUT_S)

    def _cell(self, options: BenchOptions, key: CellKey, steps: int) -> Cell:
        cpus, most_clients = self.facts.cpus, max(options.clients)
        if options.command is None:
            words: tuple[str, ...] = ("python3", f"{self.folder}/workload.py")
        else:
            words = command_words(options.command.replace("{steps}", str(steps)))
        return Cell(
            clients=key.clients,
            percentage=key.percentage,
            steps=steps,
            threads=threads_per_client(len(cpus) or 1, most_clients),
            cores=core_sets(cpus if self.is_pinned(options) else (), key.clients, most_clients),
            words=words,
            program_waits=options.command is None,
            gpu=self.facts.gpu_uuid,
        )

    def _cell_script(self, cell: Cell) -> Script:
        folder = f"{self.folder}/cell"
        if not self.has_container_per_worker:
            return program_script(self.container, cell_words(cell, folder), self.token)
        return cell_on_host_script(
            cell,
            folder,
            container=self.container,
            workers=self.facts.workers,
            directory=WORKSPACE,
            token=self.token,
            end=end_text(),
        )


def _timed_out(options: BenchOptions, key: CellKey) -> CellFailed:
    return CellFailed(
        f"no end within {durations.rounded(CELL_TIMEOUT_S)}",
        where=str(key),
        why="it was ended",
        fix="--command with a program that ends sooner"
        if options.has_fixed_steps
        else "--steps with a smaller number",
    )
