"""The machine's NVIDIA driver, copied for a lab with a real GPU (PROVISION_LAB_GPU=real)."""

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


def copy_driver(target: Path) -> None:
    """Copy programs and libraries into `target`/bin and `target`/lib64, as cos-extensions does.

    Raises `FileNotFoundError` without a driver.
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


def gpu_minor_numbers() -> list[str]:
    """The minor device numbers of this machine's GPUs."""
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


def _libraries() -> Iterator[Path]:
    """The driver's 64-bit libraries from the linker's cache, then from /usr/local/nvidia/lib64."""
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
