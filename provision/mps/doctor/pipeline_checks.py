"""Check of the pipeline options of a Dataflow job. Pure.

Beam's SDK validates none of them: an unknown field, count 9, and `use_nvidia_mps` beside
`no_use_multiple_sdk_containers` all pass (docs/facts.md), and the job starts without MPS or without
a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from provision.mps.doctor.evidence import Evidence
from provision.mps.doctor.finding import Finding, fail, ok, warn

ACCELERATOR = "worker_accelerator=type:nvidia-l4;count:1;install-nvidia-driver;use_nvidia_mps"
_OPTION = f"--dataflow_service_options='{ACCELERATOR}'"
_FIELDS = frozenset(
    {"type", "count", "install-nvidia-driver", "use_nvidia_mps", "provisioning_model"}
)
_DRIVERS = frozenset({"", "default", "latest", "5xx"})
_FLAG = re.compile(
    r"--(?:dataflow_service_options?|(?:additional[-_])?experiments?)(?:=(.*))?", re.DOTALL
)
"""Flags that take service options, the older form of the accelerator included. Each takes a list
and may come again."""


def pipeline(evidence: Evidence) -> Finding:
    """The options are those that Dataflow asks of a job with MPS."""
    if not evidence.options:
        return ok("no pipeline options were given; mps.doctor -- OPTIONS checks them")
    options = service_options(evidence.options)
    if "no_use_multiple_sdk_containers" in options:
        return fail(
            "--experiments=no_use_multiple_sdk_containers is set",
            "it leaves one process for all vCPUs, so MPS gains nothing",
            "remove it from the pipeline's options",
        )
    if "enable_prime" in options:
        return fail(
            "Dataflow Prime is on",
            "it does not support MPS",
            "remove enable_prime from --dataflow_service_options",
        )
    prefix = "worker_accelerator="
    values = [option.removeprefix(prefix) for option in options if option.startswith(prefix)]
    if not values:
        return warn(
            "no worker_accelerator among the options", "without it the workers have no GPU", _OPTION
        )
    findings = (_accelerator_problem(value) for value in values)
    return next((finding for finding in findings if finding), ok("the options fit"))


def service_options(words: Sequence[str]) -> list[str]:
    """Service options and experiments among a pipeline's options.

    `--flag=a,b` and `--flag a,b` are read, any number of times.
    """
    options: list[str] = []
    expects_value = False
    for word in words:
        flag = _FLAG.fullmatch(word)
        is_value = expects_value and not word.startswith("--")
        value = word if is_value else flag[1] if flag else None
        options += [option.strip() for option in (value or "").split(",")]
        expects_value = flag is not None and flag[1] is None
    return [option for option in options if option]


def _accelerator_problem(text: str) -> Finding | None:
    """What is wrong with `type:T;count:N;install-nvidia-driver[:VERSION];use_nvidia_mps`."""
    pairs = (each.partition(":") for each in text.split(";") if each)
    values = {key: value for key, _, value in pairs}
    return _malformed(values) or _unfit(values)


def _malformed(values: Mapping[str, str]) -> Finding | None:
    """A field that is unknown, and a value that a shell cut off."""
    unknown_fields = [key for key in values if key not in _FIELDS]
    if unknown_fields:
        return fail(
            f"{unknown_fields[0]} in worker_accelerator is not known",
            f"known are {', '.join(sorted(_FIELDS))}",
            ACCELERATOR,
        )
    if not values.get("type"):
        return fail("no type in worker_accelerator", "the workers get no GPU", ACCELERATOR)
    if len(values) == 1:
        return fail(
            "worker_accelerator ends after its type",
            "a semicolon that is not in quotes ends a shell's command",
            _OPTION,
        )
    return None


def _unfit(values: Mapping[str, str]) -> Finding | None:
    """Fields with which the workers have no MPS, or no driver."""
    if values.get("count") != "1":
        return fail(
            f"count is {values.get('count') or 'not given'}",
            "MPS is for workers with one GPU",
            "count:1 in worker_accelerator",
        )
    if "install-nvidia-driver" not in values:
        return fail(
            "install-nvidia-driver is not among worker_accelerator's fields",
            "no driver is installed on the workers, and their GPU cannot be used",
            "append ;install-nvidia-driver to worker_accelerator",
        )
    if "use_nvidia_mps" not in values:
        return warn(
            "use_nvidia_mps is not among worker_accelerator's fields",
            "workers time-slice the GPU",
            "append ;use_nvidia_mps to worker_accelerator",
        )
    version = values["install-nvidia-driver"]
    if version not in _DRIVERS:
        return warn(
            f"install-nvidia-driver:{version} is not known",
            "default, latest and 5xx are",
            "install-nvidia-driver in worker_accelerator",
        )
    return None
