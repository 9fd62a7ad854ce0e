"""The base image of the worker, made from this machine's own parts: no registry is reachable where the lab runs.

It carries the name of the Beam SDK image of this machine's Python, so that the Dockerfile of the
default settings builds from it: busybox, a whole Python, pip, apache-beam (the real one where pip
can fetch it) and a boot program that stands in.
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
"""Changes with what is put into the image, so that an older one is not taken from the cache."""
CUDA_STANDIN = "/usr/local/nvidia/lib64/.lab/packages/mps_standin/site"
"""Where the driver's stand-ins have their libcuda for Python; no such folder comes with a real
driver, and then nothing is changed."""
_PROGRAMS = """
    [ awk basename bash cat chgrp chmod chown cmp comm cp cut date dd df diff dirname du echo env expr false find grep gzip head
    hostname id install join kill ldconfig ln ls mkdir mkfifo mknod mktemp mv nice nl nohup nproc od paste pgrep printenv printf ps pwd
    readlink realpath rm rmdir sed seq sha256sum sh sleep sort split stat stdbuf stty sync tac tail tar taskset tee test timeout touch
    tr true truncate tty uname uniq unlink wc whoami xargs yes
"""
"""What Debian's images have, and so the Beam SDK's; the machine's own. Busybox stands in for
whatever else is asked for."""
_RUNTIME = """
    libanl.so.1 libc.so.6 libdl.so.2 libgcc_s.so.1 libm.so.6 libnss_dns.so.2 libnss_files.so.2 libpthread.so.0 libresolv.so.2 librt.so.1
    libstdc++.so.6 libutil.so.1
"""
"""The C and C++ run time, which every image has whole: the driver's programs and whatever is
installed later link to it."""
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
# Where the SDK image has Beam's boot program. The lab runs no Dataflow job, so this one only says so.
echo "boot: a stand-in of the lab: it starts no SDK harness" >&2
exit 1
"""
_ASK = """
import ensurepip, json, sys, sysconfig
print(json.dumps({
    "executable": sys.executable, "version": "%d.%d" % sys.version_info[:2], "stdlib": sysconfig.get_path("stdlib"),
    "purelib": sysconfig.get_path("purelib"), "wheels": getattr(ensurepip, "_WHEEL_PKG_DIR", None),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """The Python that this virtual environment was made from, with the folders it cannot do without."""

    executable: Path
    version: str
    stdlib: Path
    purelib: Path
    wheels: Path | None

    @classmethod
    def find(cls) -> Interpreter:
        """The base of the running interpreter. Its answer, not ours: a distribution may have moved its folders."""
        base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        said = json.loads(
            subprocess.run(
                [base, "-IS", "-c", _ASK], check=True, capture_output=True, text=True, timeout=60
            ).stdout
        )
        wheels = Path(said["wheels"]) if said["wheels"] else None
        return cls(
            Path(said["executable"]),
            said["version"],
            Path(said["stdlib"]),
            Path(said["purelib"]),
            wheels,
        )

    @property
    def pip_wheel(self) -> Path:
        """pip, as it came with this Python."""
        return next((self.wheels or self.stdlib / "ensurepip" / "_bundled").glob("pip-*.whl"))


@dataclass(frozen=True)
class BaseImage:
    """A root file system as a tar file, the name it goes by, and a digest of what it was made from."""

    reference: str
    archive: Path
    digest: str
    python: str
    beam_is_real: bool


def base_image(cache: Path, busybox: Path, *, beam: str = "auto") -> BaseImage:
    """The image, from `cache` or made now with a static `busybox`.

    `beam` says which apache-beam it has: `real` (pip has to be able to fetch it), `standin`, or
    `auto`, whichever works. Raises `RuntimeError` where a real one cannot be had.
    """
    python = Interpreter.find()
    packages = None if beam == "standin" else _fetch_beam(cache, required=beam == "real")
    made_of = [
        FORMAT,
        python.version,
        str(python.executable),
        python.executable.stat().st_mtime_ns,
        packages is not None,
        DEFAULT_BEAM,
    ]
    digest = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    archive = cache / f"base-{digest}.tar"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            with tarfile.open(Path(work) / "tar", mode="w") as tar:
                _Root(tar).write(python, busybox, packages)
            (Path(work) / "tar").replace(archive)
    return BaseImage(
        ImageSpec(python=python.version).base, archive, digest, python.version, packages is not None
    )


def _fetch_beam(cache: Path, *, required: bool) -> Path | None:
    """apache-beam with all it needs, installed into a folder of the cache; None where pip cannot fetch it."""
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


class _Root:
    """A root file system being written into a tar file. Parents are made on the way; what is there already stays."""

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
            self.libraries(packages.rglob("*.so"), but=packages)
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

    def libraries(self, programs: Iterable[Path], but: Path | None = None) -> None:
        """The shared libraries that these files need, the loader included, by the paths at which they are looked for."""
        said = subprocess.run(
            ["ldd", *map(str, programs)], check=False, capture_output=True, text=True, timeout=120
        ).stdout
        for library in sorted(set(re.findall(r"(?:=> |^\t)(/\S+)", said, re.MULTILINE))):
            path = Path(library)
            if path.exists() and not (but and path.resolve().is_relative_to(but.resolve())):
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
        path = self.new(path)
        if path:
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(data), mode, int(mtime)
            self.tar.addfile(entry, io.BytesIO(data))

    def link(self, path: str, target: str) -> None:
        path = self.new(path)
        if path:
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            self.tar.addfile(entry)

    def new(self, path: str) -> str:
        """The path as the archive names it, with its parents made; empty when it is there already."""
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
    """A distribution of the name and version of apache-beam for machines that can fetch nothing. It runs no pipeline."""
    info = f"apache_beam-{DEFAULT_BEAM}.dist-info"
    summary = "A stand-in of the lab: the name and the version of apache-beam, and nothing of it"
    return {
        "apache_beam/__init__.py": f'"""{summary}."""\n\n__version__ = "{DEFAULT_BEAM}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: apache-beam\nVersion: {DEFAULT_BEAM}\nSummary: {summary}\n",
        f"{info}/INSTALLER": "lab\n",
        f"{info}/RECORD": f"apache_beam/__init__.py,,\n{info}/METADATA,,\n{info}/INSTALLER,,\n{info}/RECORD,,\n",
    }
