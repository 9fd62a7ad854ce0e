"""The programs of this machine that the lab consists of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.core.errors import ProvisionError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


REQUIRED = (
    "dockerd",
    "docker",
    "runc",
    "containerd",
    "sshd",
    "ssh-keygen",
    "unshare",
    "nsenter",
    "pivot_root",
    "findmnt",
    "setpriv",
    "busybox",
)


class LabError(ProvisionError):
    """The lab cannot start, or a command in it failed."""


@dataclass(frozen=True)
class Programs:
    """Paths of the programs on this machine."""

    python: Path
    sshd: Path
    init: Path
    """An init for PID namespaces, which reaps orphans, such as tini."""
    setpriv: Path
    keygen: Path
    busybox: Path
    engine: Path | None = None
    """A folder with an unpacked Docker Engine and sshd, preferred to installed ones."""
    cloud_init: Path | None = None

    def inside(self, program: Path) -> str:
        """The path of a program inside the lab."""
        if self.engine is not None and program.is_relative_to(self.engine):
            return f"/usr/local/lib/lab/engine/{program.relative_to(self.engine)}"
        return str(program)


def engine_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder of an unpacked Docker Engine and sshd, from PROVISION_ENGINE; None without it."""
    folder = environment.get("PROVISION_ENGINE")
    return Path(folder).resolve() if folder else None


def find_programs(engine: Path | None, cloud_init: Path | None = None) -> Programs:
    """Find the programs. Raises `LabError` with a list of all that are missing."""
    if os.geteuid() != 0:
        raise LabError("the lab needs root", fix="sudo make lab")
    path = (
        PATH
        if engine is None
        else f"{engine}/usr/sbin:{engine}/usr/bin:{engine}/sbin:{engine}/bin:{PATH}"
    )
    found = {
        name: Path(where)
        for name in REQUIRED
        if (where := shutil.which(name, path=path)) is not None
    }
    python = shutil.which("python3", path="/usr/bin:/bin")
    init = next(
        filter(
            None, (shutil.which(name, path=path) for name in ("docker-init", "tini", "tini-static"))
        ),
        None,
    )
    missing = (
        [name for name in REQUIRED if name not in found]
        + ["/usr/bin/python3"] * (python is None)
        + ["tini"] * (init is None)
    )
    if python is None or init is None or missing:
        fix = ".ci/packages   (installs them from Debian's packages), or set PROVISION_ENGINE"
        raise LabError("programs of the lab are missing", why=", ".join(missing), fix=fix)
    return Programs(
        python=Path(python).resolve(),
        sshd=found["sshd"],
        init=Path(init),
        setpriv=found["setpriv"],
        keygen=found["ssh-keygen"],
        busybox=found["busybox"],
        engine=engine,
        cloud_init=cloud_init,
    )
