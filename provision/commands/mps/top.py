"""mps.top: a live view of the GPU's users, over one exchange that reports again and again."""

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
from provision.core.errors import EXIT_FAILED, EXIT_OK, ProvisionError
from provision.core.job import script_command
from provision.core.model import Host, Transport
from provision.core.shell import Script, script
from provision.mps.status.status import MpsStatus, read_status
from provision.project.project import Project
from provision.resources.nvidia_smi import SmiGpu

MAX_RUN_S = 86_400.0
_KEY_WAIT_S = 0.1

_STREAM = """
while :; do
    sh -c "$status"
    echo "$mark"
    test -n "$pause_s" || exit 0
    sleep "$pause_s"
done
"""


class View(Protocol):
    """Where the frames are shown, and where keys come from."""

    def show(self, text: str) -> None:
        """Replace what is shown."""
        ...

    def read_keys(self, timeout_s: float) -> str:
        """The keys that were pressed within the time."""
        ...


class StatusStream:
    """The output of the host, split at each `mark` into statuses.

    `queue` holds the statuses in order; last comes None at the end of the exchange, or its error.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.queue: queue.SimpleQueue[MpsStatus | ProvisionError | None] = queue.SimpleQueue()
        self._end = f"{mark}\n".encode()
        self._buffer = b""

    def feed(self, data: bytes) -> None:
        """Process bytes of the output. Raises `ProbeUnreadable` for a malformed status."""
        *complete, self._buffer = (self._buffer + data).split(self._end)
        for output in complete:
            self.queue.put(read_status(output.decode("utf-8", "replace")))


def mps_top(
    project: Project, targets: Targets, *, view: View | None = None, every_s: float = 2.0
) -> TaskResult:
    """Show clients, memory and GPU activity until q or Ctrl-C.

    Without a `view`, one frame is the text of the result, and the exit status is that of
    `mps.status`.
    """
    target = host_access.resolve_host(project, targets)
    transport = host_access.connect(project, target)
    stream = StatusStream(secrets.token_hex(8))
    pause_s = f"{every_s:g}" if view is not None else ""
    try:
        _start_exchange(transport, _stream_script(project, target, stream.mark, pause_s), stream)
        last = _show_frames(project, stream, view)
    except KeyboardInterrupt:
        last = None
    finally:
        transport.close()
    if last is None or view is not None:
        return TaskResult({} if last is None else status_document(project, last), EXIT_OK)
    return TaskResult(
        status_document(project, last),
        EXIT_OK if last.daemon else EXIT_FAILED,
        frame_text(project, last, keys=""),
    )


def _stream_script(project: Project, target: Host, mark: str, pause_s: str) -> Script:
    """Prints the status and `mark` every `pause_s` seconds; once where `pause_s` is empty."""
    status = status_script_for(project, target).render()
    return script(_STREAM, status=status, mark=mark, pause_s=pause_s)


def _start_exchange(transport: Transport, body: Script, stream: StatusStream) -> None:
    """Run the script in a thread of its own and feed its output to `stream`."""
    command, stdin = script_command(body, become=transport.host.become)

    def run() -> None:
        try:
            transport.exchange(
                command,
                stdin,
                on_stdout=stream.feed,
                on_stderr=lambda data: None,
                timeout_s=MAX_RUN_S,
            )
            stream.queue.put(None)
        except ProvisionError as error:
            stream.queue.put(error)

    threading.Thread(target=run, daemon=True).start()


def _show_frames(project: Project, stream: StatusStream, view: View | None) -> MpsStatus | None:
    """Show each status until q is pressed or the exchange ends; returns the last one.

    Raises the error that ended the exchange.
    """
    last: MpsStatus | None = None
    while True:
        try:
            status = stream.queue.get(timeout=_KEY_WAIT_S if view is None else 0.0001)
        except queue.Empty:
            if view is not None and set(view.read_keys(_KEY_WAIT_S)) & {"q", "Q"}:
                return last
            continue
        if isinstance(status, ProvisionError):
            raise status
        if status is None:
            return last
        last = status
        if view is not None:
            view.show(frame_text(project, status))


def frame_text(project: Project, status: MpsStatus, *, keys: str = "   (q quits)") -> str:
    """One frame: time, GPUs, then the text of `mps.status`."""
    rows = [
        f"{f'gpu {gpu.index}':<18} {gpu.name}, {_activity(gpu)}, {_memory(gpu)}"
        for gpu in status.gpus
    ]
    head = f"{time.strftime('%H:%M:%S')}  {project.program_argv0} mps.top{keys}"
    return "\n".join([head, *rows, "", status_text(project, status)])


def _activity(gpu: SmiGpu) -> str:
    if gpu.utilization is None:
        return "activity not known"
    return f"busy {gpu.utilization} % of the time"


def _memory(gpu: SmiGpu) -> str:
    if gpu.memory_used_mib is None or gpu.memory_total_mib is None:
        return "memory not known"
    return f"{gpu.memory_used_mib} of {gpu.memory_total_mib} MiB in use"
