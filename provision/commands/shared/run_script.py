"""Run one script on a host outside of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from provision.core.errors import CommandFailed
from provision.core.exchange import tail
from provision.core.job import reading_command, script_command
from provision.core.model import Transport
from provision.core.shell import Script


def run_script(
    transport: Transport,
    body: Script,
    purpose: str,
    *,
    chunks: Sequence[bytes] | None = None,
    timeout_s: float = 3600.0,
) -> str:
    """The standard output of a script, which reads `chunks` as its standard input.

    `purpose` names it in errors, such as `sending the files`. Raises `CommandFailed`, with its last
    lines, when its status is not 0, and errors of the connection.
    """
    out, err = bytearray(), bytearray()
    become = transport.host.become
    if chunks is None:
        command, stdin = script_command(body, become=become)
        status = transport.exchange(
            command, stdin, on_stdout=out.extend, on_stderr=err.extend, timeout_s=timeout_s
        )
    else:
        status = transport.send(
            reading_command(body, become=become),
            chunks,
            on_stdout=out.extend,
            on_stderr=err.extend,
            timeout_s=timeout_s,
        )
    text = out.decode("utf-8", "replace")
    if status != 0:
        raise CommandFailed(
            f"{purpose} failed with status {status}",
            where=transport.host.name,
            why=tail(err.decode("utf-8", "replace") or text) or "it printed nothing",
        )
    return text
