"""The scripts of one cell: all in one container, or each client in its own. Pure.

Where the workers have one container, cell and clients run in it. Where each has its own, cell and
daemon run in the first one, and a client in each. The containers share the PID and IPC namespaces,
as MPS requires, and the clients use a common folder of the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provision.core.shell import Script, payload, script, shell_text
from provision.mps.bench.cell import Cell
from provision.resources.container import IS_RUNNING

HERE = Path(__file__).parent


def cell_words(cell: Cell, folder: str) -> list[str]:
    """The words to run in the container for the cell and all its clients.

    `folder` is absolute and has at most 80 bytes (AF_UNIX). The script creates and removes it.
    """
    return [
        *("sh", "-c", shell_text(HERE / "cell.sh"), "provision"),
        *_cell_arguments(cell, folder),
        shell_text(HERE / "client.sh"),
        *(folder, _barrier(cell), str(cell.steps), str(cell.threads), _client_gpu(cell)),
        *cell.words,
    ]


def cell_on_host_script(
    cell: Cell,
    folder: str,
    *,
    container: str,
    workers: Sequence[str],
    directory: str,
    token: str,
    end: str,
) -> Script:
    """The script for the host: the cell in `container`, its clients in the containers `workers`.

    The clients are distributed over the containers in turn. `folder` is as for `cell_words`, in a
    volume of all containers. Programs start in `directory`. `end` is the text of the script that
    ends the processes with `token`.
    """
    clients = [
        f"{workers[number % len(workers)]}:{cores}" for number, cores in enumerate(cell.cores)
    ]
    return script(
        HERE / "cell_on_host.sh",
        uses=[IS_RUNNING],
        argv=[*_cell_arguments(cell, folder), *cell.words],
        name=container,
        clients=" ".join(clients),
        dir=directory,
        token=token,
        cell=shell_text(HERE / "cell.sh"),
        client=shell_text(HERE / "client.sh"),
        lost=shell_text(HERE / "lost_client.sh"),
        end=end,
        folder=folder,
        barrier=_barrier(cell),
        steps=cell.steps,
        threads=cell.threads,
        gpu=_client_gpu(cell),
    )


def write_workload_script(container: str, folder: str, source: bytes) -> Script:
    """The script that writes a program into `folder` of the container, as workload.py."""
    return script(
        'docker exec "$name" sh -eu -c "$body" provision "$folder" "$program"',
        name=container,
        folder=folder,
        program=payload(source),
        body='mkdir -p "$1"\nprintf "%s" "$2" | base64 -d >"$1/workload.py"\n',
    )


def workload_source(workload: str) -> bytes:
    """The built-in program `workload` (`mlp` or `driver`)."""
    return (HERE / "workloads" / f"{workload}.py").read_bytes()


def _cell_arguments(cell: Cell, folder: str) -> list[str]:
    """The first seven arguments of cell.sh."""
    return [
        folder,
        str(cell.clients),
        "" if cell.percentage is None else str(cell.percentage),
        _barrier(cell),
        str(cell.ready_s),
        cell.gpu,
        " ".join(cell.cores),
    ]


def _barrier(cell: Cell) -> str:
    return "program" if cell.program_waits else "start"


def _client_gpu(cell: Cell) -> str:
    """The GPU that each client is given: none with MPS, where the daemon alone gets it."""
    return cell.gpu if cell.percentage is None else ""
