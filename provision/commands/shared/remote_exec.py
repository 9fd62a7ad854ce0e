"""The user's program on a host: started, streamed, ended with the connection, its status handed back."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence

from provision.commands.shared.result import TaskResult
from provision.core.errors import CommandFailed, HostError, UsageError
from provision.core.exchange import tail
from provision.core.job import reading_command, script_command
from provision.core.model import Sink, Transport
from provision.core.shell import ARGUMENT_LIMIT_BYTES, Argument, Script, script
from provision.mps.daemon.daemon import alive_text
from provision.project.project import Project
from provision.recipes.mps import FRAGMENT as MPS_FRAGMENT
from provision.recipes.worker import daemon_container_name
from provision.resources.boot import FRAGMENTS
from provision.resources.container import WORKSPACE

LONGEST_RUN_S = 30 * 86_400.0
"""A user's program has no time limit of ours; the transport wants a number."""

# `docker exec` hands no signal on, so the processes of a run are found by a variable that all of
# them inherit. Those that stay are ended by MPS first: a client that is killed with work in flight
# is undefined for all others (NVIDIA MPS guide).
END = """
token=$1
mine() { { tr '\\0' '\\n' <"/proc/$1/environ" | grep -qxF "PROVISION_RUN=$token"; } 2>/dev/null; }
every() { for process in /proc/[0-9]*; do ! mine "${process#/proc/}" || "$@" "${process#/proc/}" 2>/dev/null || true; done; }
tell() { echo "$1" | timeout 5 nvidia-cuda-mps-control 2>/dev/null || true; }
every kill -TERM
sleep 2
if test -n "$(every echo)" && test -e "${PROVISION_MOCK_ROOT-}${CUDA_MPS_PIPE_DIRECTORY-}/nvidia-cuda-mps-control.pid"; then
    for server in $(tell get_server_list | grep -x '[0-9]*'); do
        for client in $(tell "get_client_list $server"); do
            ! mine "$client" || tell "terminate_client $server $client" >/dev/null &
        done
    done
    wait
fi
every kill -KILL
"""
_RUN = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || { echo "$token not-running" >&2; exit 125; }
test ! -e "$chosen" || docker exec "$daemon" sh -c "$alive" </dev/null >/dev/null 2>&1 || echo "$without" >&2
test -z "$hidden" || unset "$hidden"
trap 'docker exec "$name" sh -c "$end" provision "$token"; exit 143' TERM HUP INT
docker exec ${hidden:+--env "$hidden"} --env "PROVISION_RUN=$token" --workdir "$dir" "$name" "$@" &
wait "$!"
"""


_PIPED = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || { echo "$token not-running" >&2; exit 125; }
test ! -e "$chosen" || docker exec "$daemon" sh -c "$alive" </dev/null >/dev/null 2>&1 || echo "$without" >&2
test -z "$hidden" || unset "$hidden"
exec docker exec --interactive ${hidden:+--env "$hidden"} --env "PROVISION_RUN=$token" --workdir "$dir" "$name" "$@"
"""
# The lifeline of a program that reads: it has a channel of its own, since the program's input ends
# while the program goes on. A session of its own keeps what ends the program from being ended with
# us.
_WATCH = """
trap : TERM HUP INT
echo watching
word=
read -r word || true
test "$word" = over || setsid docker exec "$name" sh -c "$end" provision "$token"
"""
_PIECE_BYTES = 64 * 1024
_FAREWELL_S = 5.0
"""How long the lifeline's own channel may take to close."""


def in_container(
    container: str, words: Sequence[str], token: str, known: Mapping[str, Argument] | None = None
) -> Script:
    """The script that runs `words` in the container and ends them when it is told to end; `known` is what `around` gives."""
    return script(
        _RUN, argv=words, name=container, token=token, dir=WORKSPACE, end=END
    ).with_bindings(known or {"chosen": "", "hidden": ""})


def around(project: Project) -> dict[str, Argument]:
    """What the scripts have to know that start the user's programs.

    `hidden` is the variable that programs must not see, whoever set it. With `mps.gpu` the daemon
    alone is told the GPU: clients count its devices from 0 again, so an index that the image sets
    names none of them (NVIDIA MPS guide, environment variables). `docker exec --env NAME` takes it
    out (docs/facts.md).

    `without` is said where MPS was `chosen` and `alive` finds no daemon, as after a restart of its
    container: CUDA programs would run without it and say nothing (NVIDIA MPS guide, architecture).
    """
    settings = project.settings
    return {
        "hidden": "CUDA_VISIBLE_DEVICES" if settings.mps.gpu else "",
        "chosen": FRAGMENTS / MPS_FRAGMENT,
        "daemon": daemon_container_name(settings),
        "alive": alive_text(),
        "without": project.with_program_name(
            "MPS is enabled here, but no daemon runs: CUDA programs run without it; invoke mps.enable"
        ),
    }


class Told:
    """Standard error of the run, with our own one line taken out."""

    def __init__(self, token: str, sink: Sink) -> None:
        self._line = f"{token} not-running\n".encode()
        self._sink = sink
        self.not_running = False

    def __call__(self, data: bytes) -> None:
        """Take some bytes."""
        if self._line in data:
            self.not_running = True
            data = data.replace(self._line, b"")
        if data:
            self._sink(data)


def run(
    project: Project,
    transport: Transport,
    container: str,
    words: Sequence[str],
    *,
    stdin: int | None = None,
) -> TaskResult:
    """Run `words` in the container, stream its output, return its status. Failures of ours are raised.

    It reads what the file descriptor `stdin` gives until that ends, or nothing.
    """
    token = secrets.token_hex(8)
    told = Told(token, project.stderr)
    if stdin is None:
        command, given = script_command(
            in_container(container, words, token, around(project)), become=transport.host.become
        )
        status = transport.exchange(
            command, given, on_stdout=project.stdout, on_stderr=told, timeout_s=LONGEST_RUN_S
        )
    else:
        command = reading_command(
            script(_PIPED, argv=words, name=container, token=token, dir=WORKSPACE).with_bindings(
                around(project)
            ),
            become=transport.host.become,
        )
        if len(command.encode("utf-8", "surrogateescape")) > ARGUMENT_LIMIT_BYTES:
            raise UsageError(
                "the command is too long for one that reads its standard input",
                fix="the same command with </dev/null",
            )
        with _watched(transport, container, token):
            status = transport.send(
                command,
                _pieces(stdin),
                on_stdout=project.stdout,
                on_stderr=told,
                timeout_s=LONGEST_RUN_S,
            )
    if told.not_running:
        raise not_running(project, transport)
    return finished(status)


def _pieces(handle: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while piece := os.read(handle, _PIECE_BYTES):
            yield piece


@contextlib.contextmanager
def _watched(transport: Transport, container: str, token: str) -> Iterator[None]:
    """While this lasts the program of `token` ends with the connection; whatever ends it early, Ctrl-C included, ends the program."""
    watching, over, well = threading.Event(), threading.Event(), threading.Event()
    failed: list[HostError] = []

    def word() -> Iterator[bytes]:
        over.wait()
        if well.is_set():
            yield b"over\n"

    def watch() -> None:
        body = script(_WATCH, name=container, token=token, end=END)
        command = reading_command(body, become=transport.host.become)
        try:
            transport.send(
                command,
                word(),
                on_stdout=lambda _: watching.set(),
                on_stderr=lambda _: None,
                timeout_s=LONGEST_RUN_S,
            )
        except HostError as error:
            failed.append(error)
        finally:
            watching.set()

    watcher = threading.Thread(target=watch, name="lifeline", daemon=True)
    watcher.start()
    try:
        watching.wait()
        if failed:
            raise failed[0]
        yield
        well.set()
    finally:
        over.set()
    watcher.join(_FAREWELL_S)


_IS_RUNNING = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true
"""


def check_running(project: Project, transport: Transport) -> None:
    """Raise the error for a worker container that does not run."""
    command, stdin = script_command(
        script(_IS_RUNNING, name=project.settings.worker.name), become=transport.host.become
    )
    if (
        transport.exchange(
            command, stdin, on_stdout=lambda data: None, on_stderr=lambda data: None, timeout_s=60.0
        )
        != 0
    ):
        raise not_running(project, transport)


def not_running(project: Project, transport: Transport, container: str | None = None) -> HostError:
    """The error for a container that is not there, or is stopped; the worker's unless another one is named."""
    name = project.settings.worker.name
    which = "the worker container" if container in {None, name} else f"the container {container}"
    why = f"no running container {container or name}"
    return HostError(
        f"{which} is not running",
        where=transport.host.name,
        why=why,
        fix=f"{project.program_argv0} dev.up",
    )


def finished(status: int) -> TaskResult:
    """The end of the user's program."""
    return TaskResult({"status": status, "failed_in": "program" if status else None}, status)


def checked(
    transport: Transport,
    body: Script,
    what: str,
    *,
    chunks: Sequence[bytes] | None = None,
    timeout_s: float = 3600.0,
) -> str:
    """A script of ours outside of the engine; returns what it printed. Raises `CommandFailed` with its last lines."""
    out, err = bytearray(), bytearray()
    if chunks is None:
        command, stdin = script_command(body, become=transport.host.become)
        status = transport.exchange(
            command, stdin, on_stdout=out.extend, on_stderr=err.extend, timeout_s=timeout_s
        )
    else:
        status = transport.send(
            reading_command(body, become=transport.host.become),
            chunks,
            on_stdout=out.extend,
            on_stderr=err.extend,
            timeout_s=timeout_s,
        )
    text = out.decode("utf-8", "replace")
    if status != 0:
        why = tail(err.decode("utf-8", "replace") or text) or "it printed nothing"
        raise CommandFailed(
            f"{what} failed with status {status}", where=transport.host.name, why=why
        )
    return text
