"""Choices that depend on the user of a mock host's shells: the host's folder and its Python."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from provision.testing.host.processes import MockHostError, Processes
from provision.testing.host.utilities import SYSTEM_PATH


def choose_folder(wanted: Path | None, processes: Processes) -> Path:
    """Create the host's folder: `wanted`, or a temporary folder if that is None or inaccessible.

    It is inaccessible when a server that was started as root wants a folder below a closed home,
    since the shells run as another user. `wanted/placed-at` then has the path of the folder.
    """
    if wanted is None:
        return _temporary()
    wanted = wanted.resolve()
    wanted.mkdir(parents=True, exist_ok=True)
    if processes.reads_all or not processes.as_root or _is_accessible(wanted, processes):
        return wanted
    record = wanted / "placed-at"
    if record.exists() and (known := Path(record.read_text())).is_dir():
        return known
    folder = _temporary()
    record.write_text(str(folder))
    return folder


def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="provision-mock-")).resolve()
    folder.chmod(0o711)
    return folder


def _is_accessible(folder: Path, processes: Processes) -> bool:
    status, _ = processes.run(
        ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder.parent)],
        env={"PATH": SYSTEM_PATH},
        cwd="/",
    )
    return status == 0


def find_python(processes: Processes) -> str:
    """A Python that the user of the shells can start. Raises `MockHostError` when there is none.

    It is this interpreter, the base of its virtual environment, or the system's.
    """
    if processes.reads_all or not processes.as_root:
        return sys.executable
    base = getattr(sys, "_base_executable", None) or sys.executable
    candidates = [
        sys.executable,
        base,
        os.path.realpath(base),
        shutil.which("python3", path=SYSTEM_PATH),
    ]
    for candidate in dict.fromkeys(filter(None, candidates)):
        status, _ = processes.run(
            [candidate, "-I", "-S", "-c", "pass"], env={"PATH": SYSTEM_PATH}, cwd="/"
        )
        if status == 0:
            return str(candidate)
    user = processes.uid
    tried = ", ".join(filter(None, candidates))
    raise MockHostError(
        f"the shells of a mock host run as user {user}, who cannot start any of: {tried}"
    )
