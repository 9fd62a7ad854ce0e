"""The settings of a worker image, and its Dockerfile. Pure, but for the templates that it reads."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision import templating
from provision.core.errors import SettingsError
from provision.core.worker_environment import worker_environment
from provision.image.context import build_context, context_digest

DEFAULT_BEAM = "2.77.0"
DEFAULT_PYTHON = "3.11"
RESERVED_VARIABLES = ("PATH", "LD_LIBRARY_PATH")
"""Set by the image, with the folders of the driver first."""


class Family(enum.StrEnum):
    """The kinds of base image. Each has a template `Dockerfile.FAMILY.j2`."""

    BEAM = "beam"
    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    CUDA = "cuda"


FRAMEWORKS: Mapping[Family, str] = {Family.PYTORCH: "torch", Family.TENSORFLOW: "tensorflow"}
"""The Python package that a family's base image is chosen for. The Dockerfile keeps its build and
checks that it can be imported."""

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
"""The default base images by family and Python minor version. Family beam has one for each Python
version and release.

Every tag is in use in public Dockerfiles; none of them was pulled as a test. The build checks the
Python version. PyTorch's images have conda with Python 3.11 up to 2.9 and Ubuntu's Python 3.12 from
2.10 on (pytorch/pytorch#170338); the template serves both. TensorFlow's have Ubuntu 22.04's Python
3.11, a release candidate (tensorflow/tensorflow#82529). Ubuntu 22.04 and 24.04 have Python 3.10 and
3.12. CUDA 12.8 needs a driver of branch 525 or newer (NVIDIA CUDA compatibility guide, minor
version compatibility), as an L4 does.
"""


@dataclass(frozen=True)
class Copy:
    """A file or folder of the context to copy; a relative `target` lies under /workspace."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """The settings of a worker image. Raises `SettingsError` for an invalid value.

    `python` (MAJOR.MINOR) and `beam` (the release of apache-beam) have to be those of the launcher
    (Dataflow, "Build custom container images"). `base_image` and `boot_image` replace the defaults.
    `apt` lists Debian packages, `requirements` is the text of a requirements file. `env` adds
    variables and replaces those of `worker_environment`, but not PATH and LD_LIBRARY_PATH.
    `threads` is the number of OpenMP threads of one SDK process. The build checks that the modules
    `imports` can be imported.
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
                name not in RESERVED_VARIABLES,
                f"env.{name}",
                self.env[name],
                "unset: the image puts the driver's folders first in it",
            )
        _ = self.base

    @property
    def base(self) -> str:
        """The base image: `base_image`, or the family's for this Python.

        Raises `SettingsError` where the family has none for this Python.
        """
        sdk = f"apache/beam_python{self.python}_sdk:{self.beam}"
        by_python = {self.python: sdk} if self.family is Family.BEAM else BASE_IMAGES[self.family]
        found = self.base_image or by_python.get(self.python)
        if found is None:
            raise SettingsError(
                f"family {self.family} has no default base image with Python {self.python}",
                where="worker.python",
                why=f"its images carry Python {' or '.join(by_python)};"
                " Dataflow needs the launcher's version in the image",
                fix=f"launch with Python {next(iter(by_python))}, set worker.base_image,"
                " or use worker.base=beam",
            )
        return found

    @property
    def boot(self) -> str:
        """The image from which the boot program is copied."""
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
            "env": {**worker_environment(self.threads), **self.env},
            "copies": list(self.copies),
        }


def _require(accepted: object, key: str, value: object, allowed: str) -> None:
    """Raise `SettingsError` for worker.KEY unless the value is `accepted`."""
    if not accepted:
        raise SettingsError(
            f"{value!r} is not allowed", where=f"worker.{key}", why=f"it has to be {allowed}"
        )


def _is_pinned(reference: str) -> bool:
    if re.fullmatch(templating.IMAGE_REFERENCE, reference) is None:
        return False
    tag = reference.rpartition("/")[2].partition(":")[2]
    return "@sha256:" in reference or tag not in ("", "latest")


def dockerfile(spec: ImageSpec, *, project_dir: Path | None = None) -> str:
    """The Dockerfile of `spec`, from `Dockerfile.FAMILY.j2`. Raises `TemplateError`."""
    return templating.render(f"Dockerfile.{spec.family}.j2", spec.values(), project_dir=project_dir)


@dataclass(frozen=True)
class Build:
    """An image to build: its `reference`, its `dockerfile`, and its `context`.

    The context is the tar.gz for `docker build -`; `digest` is that of its files.
    """

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
    """The build of `spec`: its Dockerfile rendered, its context packed.

    The image is named after the digest of the context, so that a changed context is another image.
    Reads the templates and the files of `context_dir`. Raises `TemplateError` for a template of the
    project and `UsageError` for a context that cannot be packed.
    """
    text = dockerfile(spec, project_dir=project_dir)
    context = build_context(text, spec.requirements, context_dir)
    digest = context_digest(context)
    return Build(image_reference(digest, repository), text, context, digest)


def image_reference(digest: str, repository: str = "provision/worker") -> str:
    """The name of an image by the digest of its context, as `provision/worker:0123456789ab`."""
    return f"{repository}:{digest[:12]}"
