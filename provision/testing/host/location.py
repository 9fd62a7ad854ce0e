"""Where a mock host can lie and which Python its stand-ins can run, seen with the eyes of the user of its shells."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from provision.testing.host.processes import MockHostError, Processes
from provision.testing.host.utilities import SYSTEM_PATH


def place(wanted: Path | None, processes: Processes) -> Path:
    """Where the host's folder can lie: where wanted, or under the system's temporary folder.

    The latter when the user of the shells cannot come by there (a server started as root, whose
    home is closed); `wanted` then records the place in `placed-at`.
    """
    if wanted is None:
        return _temporary()
    wanted = wanted.resolve()
    wanted.mkdir(parents=True, exist_ok=True)
    if processes.reads_all or not processes.as_root or _passable(wanted, processes):
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


def _passable(folder: Path, processes: Processes) -> bool:
    status, _ = processes.run(
        ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder.parent)],
        env={"PATH": SYSTEM_PATH},
        cwd="/",
    )
    return status == 0


def find_python(processes: Processes) -> str:
    """An interpreter that the user of the shells can start: this one, the one it was made from, or the system's."""
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
    raise MockHostError(
        f"the shells of a mock host run as user {user}, who cannot start any of: {', '.join(filter(None, candidates))}"
    )
