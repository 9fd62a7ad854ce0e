"""The user's program on a host: started, streamed, ended with the connection, its status handed back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from provision.app.session import Done, Session
from provision.errors import CommandFailed, HostError
from provision.exchange import tail
from provision.model import Sink, Transport
from provision.resources.container import WORKSPACE
from provision.shell import Script, fed, lifeline, script

LONGEST_RUN_S = 30 * 86_400.0
"""A user's program has no time limit of ours; the transport wants a number."""

# `docker exec` hands no signal on, so the processes of a run are found by a variable that all of them inherit.
END = """
for signal in TERM KILL; do
    for process in /proc/[0-9]*; do
        if tr '\\0' '\\n' <"$process/environ" 2>/dev/null | grep -qxF "PROVISION_RUN=$1"; then
            kill -"$signal" "${process#/proc/}" 2>/dev/null || true
        fi
    done
    test "$signal" = KILL || sleep 2
done
"""
_RUN = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || { echo "$token not-running" >&2; exit 125; }
trap 'docker exec "$name" sh -c "$end" provision "$token"; exit 143' TERM HUP INT
docker exec --env "PROVISION_RUN=$token" --workdir "$dir" "$name" "$@" &
wait "$!"
"""


def in_container(container: str, words: Sequence[str], token: str) -> Script:
    """The script that runs `words` in the container and ends them when it is told to end."""
    return script(_RUN, argv=words, name=container, token=token, dir=WORKSPACE, end=END)


class _Told:
    """Standard error of the run, with our own one line taken out."""

    def __init__(self, token: str, sink: Sink) -> None:
        self._line = f"{token} not-running\n".encode()
        self._sink = sink
        self.not_running = False

    def __call__(self, data: bytes) -> None:
        if self._line in data:
            self.not_running = True
            data = data.replace(self._line, b"")
        if data:
            self._sink(data)


def run(session: Session, transport: Transport, container: str, words: Sequence[str]) -> Done:
    """Run `words` in the container, stream its output, return its status. Failures of ours are raised."""
    token = secrets.token_hex(8)
    told = _Told(token, session.stderr)
    command, stdin = lifeline(in_container(container, words, token), become=transport.host.become)
    status = transport.exchange(command, stdin, on_stdout=session.stdout, on_stderr=told, timeout_s=LONGEST_RUN_S)
    if told.not_running:
        raise not_running(session, transport)
    return finished(status)


_IS_RUNNING = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true
"""


def check_running(session: Session, transport: Transport) -> None:
    """Raise the error for a worker container that does not run."""
    command, stdin = lifeline(script(_IS_RUNNING, name=session.settings.worker.name), become=transport.host.become)
    if transport.exchange(command, stdin, on_stdout=lambda data: None, on_stderr=lambda data: None, timeout_s=60.0) != 0:
        raise not_running(session, transport)


def not_running(session: Session, transport: Transport) -> HostError:
    """The error for a worker container that is not there, or is stopped."""
    why = f"no running container {session.settings.worker.name}"
    return HostError("the worker container is not running", where=transport.host.name, why=why, fix=f"{session.program_argv0} dev.up")


def finished(status: int) -> Done:
    """The end of the user's program."""
    return Done({"status": status, "failed_in": "program" if status else None}, status)


def checked(transport: Transport, body: Script, what: str, *, chunks: Sequence[bytes] | None = None, timeout_s: float = 3600.0) -> str:
    """A script of ours outside of the engine; returns what it printed. Raises `CommandFailed` with its last lines."""
    out, err = bytearray(), bytearray()
    if chunks is None:
        command, stdin = lifeline(body, become=transport.host.become)
        status = transport.exchange(command, stdin, on_stdout=out.extend, on_stderr=err.extend, timeout_s=timeout_s)
    else:
        status = transport.send(
            fed(body, become=transport.host.become), chunks, on_stdout=out.extend, on_stderr=err.extend, timeout_s=timeout_s
        )
    text = out.decode("utf-8", "replace")
    if status != 0:
        why = tail(err.decode("utf-8", "replace") or text) or "it printed nothing"
        raise CommandFailed(f"{what} failed with status {status}", where=transport.host.name, why=why)
    return text
