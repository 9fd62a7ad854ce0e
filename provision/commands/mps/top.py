"""A live view of who shares the GPU: one exchange for its whole life, in which the host tells again and again."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from typing import Protocol

from provision.commands.mps.shared.fetch_status import status_script_for
from provision.commands.mps.shared.status_report import status_document, status_text
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import EXIT_FAILED, ProvisionError
from provision.core.job import script_command
from provision.core.model import Host, Transport
from provision.core.shell import Script, script
from provision.mps.status.status import MpsStatus, read_status
from provision.project.project import Project
from provision.resources.nvidia_smi import SmiGpu

LONGEST_S = 86_400.0
_LOOK_S = 0.1

_STREAM = """
while :; do
    sh -c "$look"
    echo "$mark"
    test -n "$pause_s" || exit 0
    sleep "$pause_s"
done
"""


class View(Protocol):
    """Where the frames go, and where keys come from."""

    def show(self, text: str) -> None:
        """Replace what is shown."""
        ...

    def read_keys(self, timeout_s: float) -> str:
        """The keys that were pressed within the time."""
        ...


class Frames:
    """What the host tells, cut into one status for each look."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._end = f"{mark}\n".encode()
        self._buffer = b""
        self.found: queue.SimpleQueue[MpsStatus | ProvisionError | None] = queue.SimpleQueue()

    def feed(self, data: bytes) -> None:
        """Take some bytes, in whatever pieces they come."""
        *whole, self._buffer = (self._buffer + data).split(self._end)
        for frame in whole:
            self.found.put(read_status(frame.decode("utf-8", "replace")))


def stream(project: Project, target: Host, mark: str, pause_s: str) -> Script:
    """The script that looks, marks the end of the frame, and looks again after a pause; once where there is none."""
    return script(
        _STREAM, look=status_script_for(project, target).render(), mark=mark, pause_s=pause_s
    )


def mps_top(
    project: Project, targets: Targets, *, view: View | None = None, every_s: float = 2.0
) -> TaskResult:
    """Clients, memory and GPU activity, until q or Ctrl-C; one frame without a `view`, and the exit status of `mps.status`."""
    target = host_access.find_host(project, targets)
    transport = host_access.connect(project, target)
    frames = Frames(secrets.token_hex(8))
    try:
        _follow(
            transport,
            stream(project, target, frames.mark, f"{every_s:g}" if view is not None else ""),
            frames,
        )
        last = _watch(project, frames, view)
    except KeyboardInterrupt:
        last = None
    finally:
        transport.close()
    if last is None or view is not None:
        return TaskResult({} if last is None else status_document(project, last), 0)
    return TaskResult(
        status_document(project, last),
        0 if last.daemon else EXIT_FAILED,
        frame(project, last, keys=""),
    )


def _follow(transport: Transport, body: Script, frames: Frames) -> None:
    """Let the host tell, beside whoever looks; its end is the last thing that is found."""
    command, stdin = script_command(body, become=transport.host.become)

    def work() -> None:
        try:
            transport.exchange(
                command,
                stdin,
                on_stdout=frames.feed,
                on_stderr=lambda data: None,
                timeout_s=LONGEST_S,
            )
            frames.found.put(None)
        except ProvisionError as error:
            frames.found.put(error)

    threading.Thread(target=work, daemon=True).start()


def _watch(project: Project, frames: Frames, view: View | None) -> MpsStatus | None:
    """Show each frame until the user or the host has had enough; the last one."""
    last: MpsStatus | None = None
    while True:
        try:
            found = frames.found.get(timeout=_LOOK_S if view is None else 0.0001)
        except queue.Empty:
            if view is not None and set(view.read_keys(_LOOK_S)) & {"q", "Q"}:
                return last
            continue
        if isinstance(found, ProvisionError):
            raise found
        if found is None:
            return last
        last = found
        if view is not None:
            view.show(frame(project, found))


def frame(project: Project, status: MpsStatus, *, keys: str = "   (q quits)") -> str:
    """One frame: the GPUs, then what `mps.status` says."""
    rows = [
        f"{f'gpu {gpu.index}':<18} {gpu.name}, {_busy(gpu)}, {_memory(gpu)}" for gpu in status.gpus
    ]
    head = f"{time.strftime('%H:%M:%S')}  {project.program_argv0} mps.top{keys}"
    return "\n".join([head, *rows, "", status_text(project, status)])


def _busy(gpu: SmiGpu) -> str:
    return (
        "how busy is not told"
        if gpu.utilization is None
        else f"busy {gpu.utilization} % of the time"
    )


def _memory(gpu: SmiGpu) -> str:
    if gpu.memory_used_mib is None or gpu.memory_total_mib is None:
        return "memory not told"
    return f"{gpu.memory_used_mib} of {gpu.memory_total_mib} MiB in use"
