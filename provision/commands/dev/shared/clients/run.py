"""Run the same program several times at once: started together, ended together.

The clients begin on one barrier, each with its share of the CPU's threads. They run side by side in
the worker container, or in turn in the worker containers where there are several.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path

from provision.commands.dev.shared.clients.output import ClientsOutput, mark_of
from provision.commands.dev.shared.clients.result import (
    Client,
    clients_result,
    interrupted_result,
    table_lines,
)
from provision.commands.shared.result import TaskResult
from provision.commands.shared.run_script import run_script
from provision.commands.shared.user_program.run import (
    LONGEST_RUN_S,
    PREPARE,
    ProgramStderr,
    end_text,
    program_bindings,
)
from provision.commands.shared.worker_container import container_not_running
from provision.core.errors import HostError, ProvisionError
from provision.core.job import script_command
from provision.core.model import Transport
from provision.core.shell import Script, script, shell_text
from provision.core.worker_environment import THREAD_VARIABLES
from provision.project.project import Project
from provision.resources.container import WORKER_FUNCTIONS, WORKSPACE

HERE = Path(__file__).parent
BARRIER_S = 60
"""How long clients wait for one another: a client that cannot be started would block all others."""
_CONTAINERS = (*WORKER_FUNCTIONS, "commands/dev/shared/clients/end_clients.sh")


def run_clients(
    project: Project, transport: Transport, words: Sequence[str], count: int
) -> TaskResult:
    """Run `words` `count` times at once, each output line with its client's number in front.

    The exit code is the worst status. Ctrl-C ends all clients, as a lost connection does; the
    result then reports how far each came. Raises `HostError` when the container does not run or not
    every client could be started, and errors of the connection.
    """
    token = secrets.token_hex(8)
    output = ClientsOutput(token, count, project.stdout, project.stderr)
    stderr = ProgramStderr(token, project.stderr)
    body = clients_script(project, words, count, token)
    command, stdin = script_command(body, become=transport.host.become)
    try:
        transport.exchange(
            command, stdin, on_stdout=output, on_stderr=stderr, timeout_s=LONGEST_RUN_S
        )
    except KeyboardInterrupt:
        _end_clients(project, transport, token)
        output.close()
        return interrupted_result(output.clients)
    except ProvisionError:
        output.close()
        table = table_lines(output.clients, unfinished="no report")
        project.stderr("\n".join(["", *table, ""]).encode())
        raise
    output.close()
    if stderr.is_not_running:
        raise container_not_running(project, transport)
    _check_all_started(output.clients, transport)
    return clients_result(output.clients)


def _check_all_started(clients: Sequence[Client], transport: Transport) -> None:
    """Raise `HostError` unless every client reached the barrier."""
    started = sum(client.began_s is not None for client in clients)
    if started < len(clients):
        raise HostError(
            "not every program could be started",
            where=transport.host.name,
            why=f"{started} of {len(clients)} started within {BARRIER_S} s",
            fix="--clients with a smaller number",
        )


def _end_clients(project: Project, transport: Transport, token: str) -> None:
    """End the clients and wait for that; a second Ctrl-C leaves it to the end of the connection."""
    body = script(
        HERE / "end_run.sh",
        uses=_CONTAINERS,
        name=project.settings.worker.name,
        token=token,
        dir=WORKSPACE,
        end=end_text(),
    )
    with contextlib.suppress(KeyboardInterrupt, ProvisionError):
        run_script(transport, body, "ending the programs", timeout_s=60.0)


def clients_script(project: Project, words: Sequence[str], count: int, token: str) -> Script:
    """The script for the host that runs all clients, and ends them when it is ended.

    Thread variables that the settings do not set get each client's share of the cores: processes
    with a thread per core each were up to 64 times slower (docs/facts.md).
    """
    worker = project.settings.worker
    return script(
        HERE / "run.sh",
        uses=(*PREPARE, *_CONTAINERS),
        argv=words,
        name=worker.name,
        token=token,
        mark=mark_of(token),
        count=count,
        dir=WORKSPACE,
        client=shell_text(HERE / "client.sh"),
        end=end_text(),
        patience_s=BARRIER_S,
        separate="yes" if project.settings.mps.topology == "containers" else "",
        workers=worker.processes or "",
        thread_variables=" ".join(name for name in THREAD_VARIABLES if name not in worker.env),
        more="" if "PYTHONUNBUFFERED" in worker.env else "PYTHONUNBUFFERED=1",
    ).with_bindings(program_bindings(project))
