"""The probe client: a CUDA program in plain Python that reports what a process in a container sees.

It needs the driver's libcuda and nothing else. Its text is programs/probe_client.py. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from provision.core.parsing import parse_int
from provision.core.shell import Script, fields, script, shell_text

HERE = Path(__file__).parent


@cache
def probe_client_program() -> str:
    """The text of the program for `python -c`, without comment lines."""
    text = (HERE / "programs/probe_client.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def prove_text() -> str:
    """The shell that runs the program `$1` in a container and prints whether it is attached."""
    return shell_text(HERE / "prove.sh")


def attachment_script(container: str) -> Script:
    """Runs the probe client in a container of a host.

    Prints `attached: …`, `outside: …`, `failed: …` or `unproven: …`; nothing where the container
    does not run.
    """
    return script(
        """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || exit 0
docker exec "$name" sh -c "$body" provision "$program" 2>/dev/null | tail -n 1
""",
        name=container,
        body=prove_text(),
        program=probe_client_program(),
    )


@dataclass(frozen=True)
class ProbeResult:
    """What the probe client saw; None where it ended before that."""

    sms: int | None = None
    """Multiprocessors that it may use."""
    cuda: tuple[int, int] | None = None
    """Newest CUDA version that the driver supports."""


def read_probe(text: str) -> ProbeResult:
    """What the probe client printed. Never raises."""
    values = fields(text)
    driver = parse_int(values.get("driver", ""))
    return ProbeResult(
        sms=parse_int(values.get("sms", "")) or None,
        cuda=(driver // 1000, driver % 1000 // 10) if driver else None,
    )
