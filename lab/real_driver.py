"""The machine's own NVIDIA driver, collected for a lab that is to have a real GPU (PROVISION_LAB_GPU=real)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = (
    *("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    *("nvidia-debugdump", "nvidia-modprobe", "nvidia-persistenced"),
)
_LIBRARY = re.compile(r"lib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[\w-]+)\.so[.\d]*")
_PATH = "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def collect(target: Path) -> None:
    """Copy programs and libraries of the driver into `target`/bin and `target`/lib64, as cos-extensions lays them out.

    Raises `FileNotFoundError` where there is no driver.
    """
    if shutil.which("nvidia-smi", path=_PATH) is None:
        raise FileNotFoundError("nvidia-smi: this machine has no NVIDIA driver")
    shutil.rmtree(target, ignore_errors=True)
    for name in ("bin", "lib64"):
        (target / name).mkdir(parents=True)
    for name in PROGRAMS:
        if (found := shutil.which(name, path=_PATH)) is not None:
            shutil.copy(found, target / "bin" / name)
    for library in _libraries():
        if not (copied := target / "lib64" / library.name).exists():
            shutil.copy(library, copied)


def gpus() -> list[str]:
    """The minor numbers of the GPUs whose device nodes this machine has."""
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


def _libraries() -> Iterator[Path]:
    """Every library of the driver that the dynamic linker knows, 64 bits only; then those of the folder of container images."""
    known = subprocess.run(
        ["ldconfig", "-p"], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    listed = [
        Path(line.rpartition("=> ")[2])
        for line in known.splitlines()
        if "x86-64" in line or "AArch64" in line
    ]
    for path in (*listed, *sorted(Path("/usr/local/nvidia/lib64").glob("*.so*"))):
        if _LIBRARY.fullmatch(path.name) and path.exists():
            yield path
