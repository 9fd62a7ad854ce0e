"""The types of setting values: what pydantic accepts, and the words for what is allowed."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Strict

from provision.settings.validators import (
    cpu_list,
    host_key,
    idle_seconds,
    matching,
    none_word,
    number_as_text,
    parsed_by,
    pipe_dir,
    printable_text,
    switch_word,
    ttl_seconds,
    volume,
    wait_seconds,
    whole_number,
)

_LABEL = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_REGISTRY = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?"
_PATH_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE_REF = (
    r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?/)?"
    rf"{_PATH_PART}(/{_PATH_PART})*"
    r"(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)

Name: TypeAlias = Annotated[
    str, matching(_LABEL, "1 to 63 of a-z, 0-9 and -, a letter first, no - at the end (RFC 1035)")
]
Region: TypeAlias = Annotated[str, matching(r"[a-z]+(-[a-z]+)+\d+", "a region such as us-central1")]
Location: TypeAlias = Annotated[
    str,
    matching(
        r"everywhere|[a-z]+(-[a-z]+)+\d+(-[a-z])?",
        "a zone such as us-central1-a, a region such as us-central1, or everywhere",
    ),
]
Project: TypeAlias = Annotated[
    str,
    matching(
        r"([a-z][a-z0-9.-]*[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]",
        "a project id: 6 to 30 of a-z, 0-9 and -, a letter first",
    ),
]
MachineType: TypeAlias = Annotated[
    str, matching(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", "a machine type such as g2-standard-8")
]
Gpu: TypeAlias = Annotated[
    str,
    matching(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", 'an accelerator type such as nvidia-l4, or "none"'),
]
OptionalGpu: TypeAlias = Annotated[Gpu | None, BeforeValidator(none_word)]
CosImage: TypeAlias = Annotated[
    str,
    matching(
        r"cos-[a-z0-9]([-a-z0-9]{0,58}[a-z0-9])?",
        "a family or an image of cos-cloud, such as cos-125-lts",
    ),
]
Idle: TypeAlias = Annotated[str, parsed_by(idle_seconds)]
Ttl: TypeAlias = Annotated[str, parsed_by(ttl_seconds)]
Wait: TypeAlias = Annotated[str, parsed_by(wait_seconds)]
Driver: TypeAlias = Annotated[
    str,
    matching(
        r"default|latest|R\d{3}|\d{3}\.\d{1,3}(\.\d{1,3})?",
        "default, latest, a branch such as R535, or a full version such as 535.183.01",
    ),
]
Registry: TypeAlias = Annotated[
    str, matching(_REGISTRY, "a registry's host, such as us-docker.pkg.dev")
]
Recipe: TypeAlias = Annotated[
    str, matching(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", 'a function as "module:function"')
]
ImageRef: TypeAlias = Annotated[
    str, matching(_IMAGE_REF, "an image reference such as us-docker.pkg.dev/PROJECT/REPO/NAME:TAG")
]
PythonVersion: TypeAlias = Annotated[
    str, matching(r"3\.\d{1,2}", 'a minor version in quotes, such as "3.11"')
]
BeamVersion: TypeAlias = Annotated[
    str, matching(r"\d+\.\d+\.\d+(rc\d+|\.dev\d*)?", "a release of Apache Beam, such as 2.77.0")
]
Requirement: TypeAlias = Annotated[
    str, printable_text("one pip requirement on one line, such as torch==2.5.1")
]
AptPackage: TypeAlias = Annotated[
    str,
    matching(
        r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?",
        "a Debian package such as ffmpeg or ffmpeg=7:5.1.6-0",
    ),
]
EnvName: TypeAlias = Annotated[
    str,
    matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name: letters, digits and _, no digit first"),
]
EnvValue: TypeAlias = Annotated[
    str, BeforeValidator(number_as_text), matching(r"[^\0]*", "text without a NUL byte")
]
ShmSize: TypeAlias = Annotated[
    str, matching(r"[1-9]\d*[bkmgBKMG]?", "a size as Docker takes it, such as 1g or 512m")
]
Volume: TypeAlias = Annotated[str, AfterValidator(volume)]
ContainerName: TypeAlias = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,62}", "2 to 63 letters, digits, _, . and -")
]
LocalPath: TypeAlias = Annotated[str, printable_text("a path on this machine")]
AbsolutePath: TypeAlias = Annotated[
    str, printable_text("an absolute path"), matching(r"/.*", "an absolute path")
]
PipeDir: TypeAlias = Annotated[AbsolutePath, AfterValidator(pipe_dir)]
HostName: TypeAlias = Annotated[
    str,
    matching(
        r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
        "letters, digits, ., _ and -, no sign at either end",
    ),
]
Address: TypeAlias = Annotated[
    str,
    matching(
        r"[A-Za-z0-9:][A-Za-z0-9._:%-]*",
        'a host name or address that ssh can reach, or "local" for this very machine',
    ),
]
User: TypeAlias = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", "a user's name on the host")
]
HostKey: TypeAlias = Annotated[str, AfterValidator(host_key)]
Port: TypeAlias = Annotated[int, whole_number(1, 65535)]
DiskGb: TypeAlias = Annotated[int, whole_number(10, 65536)]
GpuCount: TypeAlias = Annotated[int, whole_number(0, 16)]
Processes: TypeAlias = Annotated[int, whole_number(1, 1024)]
MemoryLimit: TypeAlias = Annotated[
    str, matching(r"[1-9]\d{0,6}[GM]", "a whole number of G or M, such as 4G or 512M")
]
Cpus: TypeAlias = Annotated[str, BeforeValidator(number_as_text), AfterValidator(cpu_list)]
GpuChoice: TypeAlias = Annotated[
    str,
    BeforeValidator(number_as_text),
    matching(
        r"\d{1,2}|GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "a GPU's index, or its whole UUID as nvidia-smi -L prints it",
    ),
]
Percentage: TypeAlias = Annotated[int, whole_number(1, 100)]

Locations: TypeAlias = Annotated[tuple[Location, ...], Strict(False)]
OsLogin: TypeAlias = Annotated[Literal["auto", "on", "off"], BeforeValidator(switch_word)]
Registries: TypeAlias = Annotated[tuple[Registry, ...], Strict(False)]
Recipes: TypeAlias = Annotated[tuple[Recipe, ...], Strict(False)]
Requirements: TypeAlias = Annotated[tuple[Requirement, ...], Strict(False)]
AptPackages: TypeAlias = Annotated[tuple[AptPackage, ...], Strict(False)]
Volumes: TypeAlias = Annotated[tuple[Volume, ...], Strict(False)]
