"""The base image of the worker, built from this machine's programs without a registry.

It has the name of the Beam SDK image for this machine's Python, so that the Dockerfile of the
default settings builds from it. It contains busybox, Python, pip, apache-beam (the real one if pip
can fetch it) and a stand-in for Beam's boot program.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.programs import PATH
from provision.image.dockerfile import DEFAULT_BEAM, ImageSpec

FORMAT = 6
"""Version of the content; a cached image of another version is not used."""
CUDA_STANDIN = "/usr/local/nvidia/lib64/.lab/packages/mps_standin/site"
"""The folder of the libcuda stand-in for Python; it does not exist with a real driver."""
_PROGRAMS = """
    [ awk basename bash cat chgrp chmod chown cmp comm cp cut date dd df diff dirname du echo env
    expr false find grep gzip head hostname id install join kill ldconfig ln ls mkdir mkfifo mknod
    mktemp mv nice nl nohup nproc od paste pgrep printenv printf ps pwd readlink realpath rm rmdir
    sed seq sha256sum sh sleep sort split stat stdbuf stty sync tac tail tar taskset tee test
    timeout touch tr true truncate tty uname uniq unlink wc whoami xargs yes
"""
"""Programs of Debian's images, copied from this machine; busybox provides the others."""
_RUNTIME = """
    libanl.so.1 libc.so.6 libdl.so.2 libgcc_s.so.1 libm.so.6 libnss_dns.so.2 libnss_files.so.2
    libpthread.so.0 libresolv.so.2 librt.so.1 libstdc++.so.6 libutil.so.1
"""
"""The C and C++ run time; the driver's programs and later packages link to it."""
_SKIPPED = frozenset(
    {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "turtledemo",
        "EXTERNALLY-MANAGED",
    }
)
_BOOT = """\
#!/bin/sh
# Stands for Beam's boot program; the lab runs no Dataflow job.
echo "boot: a stand-in of the lab: it starts no SDK harness" >&2
exit 1
"""
_PRINT_PATHS = """
import ensurepip, json, sys, sysconfig
print(json.dumps({
    "executable": sys.executable, "version": "%d.%d" % sys.version_info[:2],
    "stdlib": sysconfig.get_path("stdlib"), "purelib": sysconfig.get_path("purelib"),
    "wheels": getattr(ensurepip, "_WHEEL_PKG_DIR", None),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """The base Python of this virtual environment, with its folders."""

    executable: Path
    version: str
    stdlib: Path
    purelib: Path
    wheels: Path | None

    @classmethod
    def find(cls) -> Interpreter:
        """Ask the base interpreter for its folders, which distributions move."""
        base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        paths = json.loads(
            subprocess.run(
                [base, "-IS", "-c", _PRINT_PATHS],
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
            ).stdout
        )
        wheels = Path(paths["wheels"]) if paths["wheels"] else None
        return cls(
            Path(paths["executable"]),
            paths["version"],
            Path(paths["stdlib"]),
            Path(paths["purelib"]),
            wheels,
        )

    @property
    def pip_wheel(self) -> Path:
        """The wheel of pip that came with this Python."""
        return next((self.wheels or self.stdlib / "ensurepip" / "_bundled").glob("pip-*.whl"))


@dataclass(frozen=True)
class BaseImage:
    """A root file system as a tar file, with its image name and a digest of its sources."""

    reference: str
    archive: Path
    digest: str
    python: str
    beam_is_real: bool


def base_image(cache: Path, busybox: Path, *, beam: str = "auto") -> BaseImage:
    """The image, from `cache` or newly built with a static `busybox`.

    `beam` is the kind of apache-beam: `real` (fetched by pip), `standin`, or `auto` (the first that
    works). Raises `RuntimeError` when pip cannot fetch a `real` one.
    """
    python = Interpreter.find()
    packages = None if beam == "standin" else _fetch_beam(cache, required=beam == "real")
    sources = [
        FORMAT,
        python.version,
        str(python.executable),
        python.executable.stat().st_mtime_ns,
        packages is not None,
        DEFAULT_BEAM,
    ]
    digest = hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]
    archive = cache / f"base-{digest}.tar"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            with tarfile.open(Path(work) / "tar", mode="w") as tar:
                _RootWriter(tar).write(python, busybox, packages)
            (Path(work) / "tar").replace(archive)
    return BaseImage(
        ImageSpec(python=python.version).base, archive, digest, python.version, packages is not None
    )


def _fetch_beam(cache: Path, *, required: bool) -> Path | None:
    """A cached folder with apache-beam and its dependencies; None if pip cannot fetch them."""
    folder = cache / f"apache-beam-{DEFAULT_BEAM}-{sys.implementation.cache_tag}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=cache))
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--no-compile",
        "--only-binary=:all:",
        "--target",
        str(work),
    ]
    done = subprocess.run(
        [*words, f"apache-beam=={DEFAULT_BEAM}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode == 0:
        work.chmod(0o755)
        work.replace(folder)
        return folder
    shutil.rmtree(work)
    if required:
        raise RuntimeError(f"pip cannot fetch apache-beam {DEFAULT_BEAM}:\n{done.stderr}")
    return None


class _RootWriter:
    """Writes a root file system into a tar file; the first entry of a path wins."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.tar = tar
        self.seen: set[str] = {"."}

    def write(self, python: Interpreter, busybox: Path, packages: Path | None) -> None:
        for name, mode in (
            ("tmp", 0o1777),
            ("root", 0o755),
            ("var/tmp", 0o1777),
            ("home", 0o755),
            ("run", 0o755),
        ):
            self.folder(name, mode)
        self.userland(busybox)
        self.python(python)
        self.file(f"{python.purelib}/provision-lab.pth", f"{CUDA_STANDIN}\n".encode())
        with zipfile.ZipFile(python.pip_wheel) as wheel:
            for entry in wheel.infolist():
                self.file(f"{python.purelib}/{entry.filename}", wheel.read(entry))
        if packages is None:
            for name, text in _beam_standin().items():
                self.file(f"{python.purelib}/{name}", text.encode())
        else:
            self.tree(packages, str(python.purelib), skipped={"bin", "tests", "include"})
            self.libraries(packages.rglob("*.so"), except_below=packages)
        self.file("/opt/apache/beam/boot", _BOOT.encode(), 0o755)

    def userland(self, busybox: Path) -> None:
        for link in ("usr/bin", "usr/sbin", "sbin"):
            self.link(link, "/bin")
        found = {
            name: Path(path)
            for name in _PROGRAMS.split()
            if (path := shutil.which(name, path=PATH)) is not None
        }
        for name, program in found.items():
            self.file(f"/bin/{name}", program.read_bytes(), 0o755)
        self.libraries(found.values())
        loaded = subprocess.run(
            ["ldd", str(found["sh"])], check=True, capture_output=True, text=True, timeout=60
        ).stdout
        folder = Path(re.findall(r"(/\S+)/libc\.so", loaded)[0])
        for name in _RUNTIME.split():
            if (folder / name).exists():
                self.file(f"{folder}/{name}", (folder / name).read_bytes(), 0o755)
        self.file("/bin/busybox", busybox.read_bytes(), 0o755)
        applets = subprocess.run(
            [str(busybox), "--list"], check=True, capture_output=True, text=True, timeout=60
        ).stdout.split()
        for name in applets:
            if name not in {"busybox", "docker-init"}:
                self.link(f"bin/{name}", "busybox")
        self.file(
            "/etc/passwd",
            b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        )
        self.file("/etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        self.file("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
        self.file("/etc/os-release", b'ID=provision-lab\nPRETTY_NAME="Base image of the lab"\n')

    def python(self, python: Interpreter) -> None:
        self.file(str(python.executable), python.executable.read_bytes(), 0o755)
        for name in ("python", "python3", f"python{python.version}"):
            self.link(f"usr/local/bin/{name}", str(python.executable))
        self.tree(python.stdlib, str(python.stdlib), skipped=_SKIPPED)
        if python.wheels is not None:
            self.tree(python.wheels, str(python.wheels))
        self.libraries([python.executable, *(python.stdlib / "lib-dynload").glob("*.so")])

    def libraries(self, programs: Iterable[Path], except_below: Path | None = None) -> None:
        """Add the shared libraries that these files need, the loader included."""
        output = subprocess.run(
            ["ldd", *map(str, programs)], check=False, capture_output=True, text=True, timeout=120
        ).stdout
        for library in sorted(set(re.findall(r"(?:=> |^\t)(/\S+)", output, re.MULTILINE))):
            path = Path(library)
            if path.exists() and not (
                except_below and path.resolve().is_relative_to(except_below.resolve())
            ):
                self.file(library, path.read_bytes(), 0o755)

    # --- entries ---

    def folder(self, path: str, mode: int = 0o755) -> None:
        path = path.strip("/")
        if path in self.seen or not path:
            return
        self.folder(os.path.dirname(path))  # noqa: PTH120 - of the image, not of this machine
        self.seen.add(path)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self.tar.addfile(entry)

    def file(self, path: str, data: bytes, mode: int = 0o644, mtime: float = 0) -> None:
        path = self.claim(path)
        if path:
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(data), mode, int(mtime)
            self.tar.addfile(entry, io.BytesIO(data))

    def link(self, path: str, target: str) -> None:
        path = self.claim(path)
        if path:
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            self.tar.addfile(entry)

    def claim(self, path: str) -> str:
        """The path in the archive, with its parents added; empty when it exists already."""
        path = re.sub(r"^/?(usr/)?(s?bin)/", "bin/", path).strip("/")
        if path in self.seen:
            return ""
        self.folder(os.path.dirname(path))  # noqa: PTH120 - of the image, not of this machine
        self.seen.add(path)
        return path

    def tree(self, source: Path, target: str, *, skipped: Iterable[str] = ()) -> None:
        for path in _files(source, frozenset(skipped)):
            name = f"{target}/{path.relative_to(source)}"
            if path.is_symlink() and not Path(os.path.realpath(path)).is_file():
                continue
            status = path.stat()
            self.file(name, path.read_bytes(), status.st_mode & 0o777, status.st_mtime)


def _files(folder: Path, skipped: frozenset[str]) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name in skipped or entry.name.startswith("config-"):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _files(entry, skipped if entry.name != "ensurepip" else frozenset())
        else:
            yield entry


def _beam_standin() -> dict[str, str]:
    """An empty distribution with the name and version of apache-beam; it runs no pipeline."""
    info = f"apache_beam-{DEFAULT_BEAM}.dist-info"
    summary = "A stand-in of the lab: the name and the version of apache-beam, and nothing of it"
    return {
        "apache_beam/__init__.py": f'"""{summary}."""\n\n__version__ = "{DEFAULT_BEAM}"\n',
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: apache-beam\nVersion: {DEFAULT_BEAM}\n"
            f"Summary: {summary}\n"
        ),
        f"{info}/INSTALLER": "lab\n",
        f"{info}/RECORD": "apache_beam/__init__.py,,\n"
        + "".join(f"{info}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")),
    }
