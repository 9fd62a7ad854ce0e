"""The worker image: what is asked for, and its Dockerfile. Pure, but for the templates that are read."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision import templating
from provision.core.errors import SettingsError
from provision.image.context import build_context, context_digest

DEFAULT_BEAM = "2.77.0"
DEFAULT_PYTHON = "3.11"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
OURS_IN_ENV = ("PATH", "LD_LIBRARY_PATH")


class Family(enum.StrEnum):
    """The kinds of base image; each has a template `Dockerfile.FAMILY.j2`."""

    BEAM = "beam"
    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    CUDA = "cuda"


FRAMEWORKS: Mapping[Family, str] = {Family.PYTORCH: "torch", Family.TENSORFLOW: "tensorflow"}
"""The distribution that a family's base image is chosen for; its build is kept and its import is
proven."""

BASE_IMAGES: Mapping[Family, Mapping[str, str]] = {
    Family.PYTORCH: {
        "3.11": "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime",
        "3.12": "pytorch/pytorch:2.10.0-cuda12.8-cudnn9-runtime",
    },
    Family.TENSORFLOW: {
        "3.11": "tensorflow/tensorflow:2.19.0-gpu",
    },
    Family.CUDA: {
        "3.10": "nvidia/cuda:12.8.1-cudnn-runtime-ubuntu22.04",
        "3.12": "nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04",
    },
}
"""Default bases by family and Python minor version, which such an image dictates. Family beam has
one per Python and release.

How sure: every tag is in use in public Dockerfiles, none was pulled while this was written; the
build itself checks the Python. PyTorch's images carry conda with Python 3.11 up to 2.9 and Ubuntu's
Python 3.12 from 2.10 (pytorch/pytorch#170338): the template serves both. TensorFlow's carry Ubuntu
22.04's Python 3.11, a release candidate (tensorflow/tensorflow#82529). Ubuntu 22.04 and 24.04 have
Python 3.10 and 3.12. CUDA 12.8 needs a driver of branch 525 or newer (NVIDIA CUDA compatibility
guide, minor version compatibility), which is also the floor of an L4.
"""


@dataclass(frozen=True)
class Copy:
    """A file or folder of the context that goes into the image; a relative `target` lies under /workspace."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """What a worker image is made from.

    `python` is MAJOR.MINOR of the launcher, `beam` the release of apache-beam; both have to be the
    launcher's (Dataflow, "Build custom container images"). `base_image` and `boot_image` replace
    the defaults; `apt` lists Debian packages, `requirements` is the text of a requirements file,
    `env` adds variables (and replaces those set here, except PATH and LD_LIBRARY_PATH), `threads`
    are the OpenMP threads of one SDK process (see `threads_per_worker`), `imports` are modules
    whose import the build proves. Raises `SettingsError` for what cannot be.
    """

    family: Family = Family.BEAM
    python: str = DEFAULT_PYTHON
    beam: str = DEFAULT_BEAM
    base_image: str | None = None
    boot_image: str | None = None
    apt: tuple[str, ...] = ()
    requirements: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    copies: tuple[Copy, ...] = ()
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(
            re.fullmatch(r"3\.[0-9]{1,2}", self.python),
            "python",
            self.python,
            "MAJOR.MINOR, as 3.11",
        )
        _require(
            re.fullmatch(r"2\.[0-9]+\.[0-9]+(?:\.?(?:rc|dev)[0-9]*)?", self.beam),
            "beam",
            self.beam,
            "a release, as 2.77.0",
        )
        _require(self.threads >= 1, "threads", self.threads, "1 or more")
        for key in ("base_image", "boot_image"):
            value: str | None = getattr(self, key)
            _require(
                value is None or _is_pinned(value),
                key,
                value,
                "an image with a tag other than latest, or with a digest",
            )
        for name in self.env:
            _require(
                name not in OURS_IN_ENV,
                f"env.{name}",
                self.env[name],
                "unset: the image puts the driver's folders first in it",
            )
        _ = self.base

    @property
    def base(self) -> str:
        """The base image: the one asked for, else the family's for this Python."""
        sdk = f"apache/beam_python{self.python}_sdk:{self.beam}"
        by_python = {self.python: sdk} if self.family is Family.BEAM else BASE_IMAGES[self.family]
        found = self.base_image or by_python.get(self.python)
        if found is None:
            raise SettingsError(
                f"family {self.family} has no default base image with Python {self.python}",
                where="worker.python",
                why=f"its images carry Python {' or '.join(by_python)}; Dataflow needs the launcher's version in the image",
                fix=f"launch with Python {next(iter(by_python))}, set worker.base_image, or use worker.base=beam",
            )
        return found

    @property
    def boot(self) -> str:
        """The image that the boot program is copied from."""
        return self.boot_image or f"apache/beam_python{self.python}_sdk:{self.beam}"

    def values(self) -> dict[str, object]:
        """The variables of the Dockerfile templates."""
        framework = FRAMEWORKS.get(self.family)
        return {
            "family": self.family.value,
            "python": self.python,
            "beam": self.beam,
            "base_image": self.base,
            "boot_image": self.boot,
            "beam_in_base": self.family is Family.BEAM,
            "framework": framework,
            "imports": [*([framework] if framework else []), *self.imports],
            "apt": list(self.apt),
            "has_requirements": bool(self.requirements.strip()),
            "env": {
                **dict.fromkeys(THREAD_VARIABLES, str(self.threads)),
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                **self.env,
            },
            "copies": list(self.copies),
        }


def _require(ok: object, key: str, value: object, allowed: str) -> None:
    if not ok:
        raise SettingsError(
            f"{value!r} is not allowed", where=f"worker.{key}", why=f"it has to be {allowed}"
        )


def _is_pinned(reference: str) -> bool:
    if re.fullmatch(templating.IMAGE_REFERENCE, reference) is None:
        return False
    tag = reference.rpartition("/")[2].partition(":")[2]
    return "@sha256:" in reference or tag not in ("", "latest")


def threads_per_worker(cores: int, workers: int) -> int:
    """OpenMP, MKL and OpenBLAS threads of one of `workers` processes on `cores` cores.

    Measured (docs/facts.md): 8 processes with a thread per core each ran 8 times slower than one
    process alone.
    """
    return max(1, cores // max(1, workers))


def dockerfile(spec: ImageSpec, *, project_dir: Path | None = None) -> str:
    """The Dockerfile of `spec`, from `Dockerfile.FAMILY.j2`. Raises `TemplateError`."""
    return templating.render(f"Dockerfile.{spec.family}.j2", spec.values(), project_dir=project_dir)


@dataclass(frozen=True)
class Build:
    """Everything a host needs to build: `reference` names the image, `context` is the tar.gz for `docker build -`."""

    reference: str
    dockerfile: str
    context: bytes
    digest: str


def prepare(
    spec: ImageSpec,
    *,
    project_dir: Path | None,
    context_dir: Path | None = None,
    repository: str = "provision/worker",
) -> Build:
    """Render and pack `spec`. The name holds the digest of the context: a changed one is another image, an unchanged one is found again.

    Reads the templates and `context_dir`; raises `TemplateError` and `UsageError`.
    """
    text = dockerfile(spec, project_dir=project_dir)
    context = build_context(text, spec.requirements, context_dir)
    digest = context_digest(context)
    return Build(image_reference(digest, repository), text, context, digest)


def image_reference(digest: str, repository: str = "provision/worker") -> str:
    """The name of the image that a context of this digest builds, as `provision/worker:0123456789ab`."""
    return f"{repository}:{digest[:12]}"
