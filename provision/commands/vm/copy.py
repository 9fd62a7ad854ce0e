"""`vm.copy`: files copied to hosts."""

from __future__ import annotations

import io
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.commands.shared import convergence, host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.run_script import run_script
from provision.commands.shared.targets import Targets
from provision.core import fleet
from provision.core.errors import CommandFailed, UsageError
from provision.core.fleet import Cancel
from provision.core.model import (
    Emit,
    Host,
    HostReport,
    Outcome,
    ResourceFinished,
    Status,
    Transport,
)
from provision.core.shell import RemotePath, Script, script
from provision.project.project import Project
from provision.sync.project_tar import owned_by_root

HERE = Path(__file__).parent
GSUTIL_IMAGE = "gcr.io/google.com/cloudsdktool/google-cloud-cli:stable"


@dataclass(frozen=True)
class Copy:
    """A copy to a folder of a host: the script that runs there, and its standard input."""

    src: str
    dst: str
    body: Script
    chunks: tuple[bytes, ...] | None = None
    """None where the host itself reads the files, from a bucket."""


def vm_copy(project: Project, targets: Targets, src: str, dst: str) -> TaskResult:
    """Copy a file or folder into the folder `dst` of the hosts.

    Local files travel as one tar stream; `gs://` is read on the host itself. Raises `UsageError`
    for a relative `dst` and a missing `src`.
    """
    if not PurePosixPath(dst).is_absolute():
        raise UsageError(
            "DST must be an absolute folder of the host",
            where=dst,
            why="it does not begin with /",
            fix=f"{project.program_argv0} vm.copy {src} /home/{dst}",
        )
    hosts = host_access.resolve_hosts(project, targets)
    copy = _prepare(src, dst)

    def work(target: Host, emit: Emit, cancel: Cancel) -> HostReport:
        return _copy_to_host(project, copy, target, emit, cancel)

    finished = fleet.run(hosts, work, project.emit, title="vm.copy", pace=targets.pace)
    copied = [
        {"host": report.host, "src": src, "dst": dst}
        for report in finished.reports
        if not report.failed
    ]
    return convergence.task_result(finished, check=False, copied=copied)


def _prepare(src: str, dst: str) -> Copy:
    """The copy; local files are packed once for all hosts."""
    if src.startswith("gs://"):
        body = script(
            HERE / "copy_from_bucket.sh",
            bucket=src,
            dir=RemotePath(dst),
            plain=dst,
            image=GSUTIL_IMAGE,
        )
        return Copy(src, dst, body)
    body = script('mkdir -p "$dir"\ntar -xzf - -C "$dir"', dir=RemotePath(dst))
    return Copy(src, dst, body, chunks=(pack(Path(src)),))


def _copy_to_host(
    project: Project, copy: Copy, target: Host, emit: Emit, cancel: Cancel
) -> HostReport:
    started = time.monotonic()
    with host_access.connection_of_run(project, target, emit, cancel) as transport:
        outcome = _run_copy(transport, copy)
    emit(ResourceFinished(target.name, outcome))
    return HostReport(target.name, (outcome,), round_trips=1, seconds=time.monotonic() - started)


def _run_copy(transport: Transport, copy: Copy) -> Outcome:
    """The outcome on one host: a failed command is its error, a lost connection is raised."""
    started = time.monotonic()
    try:
        run_script(transport, copy.body, f"copying {copy.src}", chunks=copy.chunks)
    except CommandFailed as error:
        return Outcome("copy", Status.FAILED, seconds=time.monotonic() - started, error=error)
    note = f"{copy.src} to {copy.dst}"
    return Outcome("copy", Status.CHANGED, seconds=time.monotonic() - started, note=note)


def pack(source: Path) -> bytes:
    """Return a gzipped tar of a file or folder, under its own name, owned by root.

    Raises `UsageError` when it does not exist.
    """
    if not source.exists():
        raise UsageError(
            "there is nothing to copy",
            where=str(source),
            why="no such file or folder",
            fix=f"ls -l {source.parent}",
        )
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.add(source, arcname=source.resolve().name, filter=owned_by_root)
    return stream.getvalue()
