"""What the last check of `mps.doctor` but one makes of a Dataflow job's options. Pure.

Beam's SDK validates none of this: a bogus field, count 9, and `use_nvidia_mps` beside
`no_use_multiple_sdk_containers` passed without a word (docs/facts.md), so the job starts and has no
MPS, or no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.mps.doctor.evidence import Found
from provision.mps.doctor.verdict import Judged, fail, ok, warn

ACCELERATOR = "worker_accelerator=type:nvidia-l4;count:1;install-nvidia-driver;use_nvidia_mps"
_FIELDS = frozenset(
    {"type", "count", "install-nvidia-driver", "use_nvidia_mps", "provisioning_model"}
)
_FLAGS = re.compile(
    r"--(?:dataflow_service_options?|(?:additional[-_])?experiments?)(?:=(.*))?", re.DOTALL
)
"""Flags that take service options, the accelerator in its older form among them: lists, and each
may come again."""


def pipeline(found: Found) -> Judged:
    """What Dataflow asks of a job with MPS."""
    if not found.options:
        return ok("no pipeline options were given; mps.doctor -- OPTIONS checks them")
    given = service_options(found.options)
    if "no_use_multiple_sdk_containers" in given:
        why = "it leaves one process for all vCPUs, so MPS has nothing to share"
        return fail(
            "--experiments=no_use_multiple_sdk_containers is set",
            why,
            "remove it from the pipeline's options",
        )
    if "enable_prime" in given:
        return fail(
            "Dataflow Prime is on",
            "it does not support MPS",
            "remove enable_prime from --dataflow_service_options",
        )
    accelerators = [
        each.partition("=")[2] for each in given if each.startswith("worker_accelerator=")
    ]
    if not accelerators:
        return warn(
            "no worker_accelerator among the options",
            "without it the workers have no GPU",
            f"--dataflow_service_options='{ACCELERATOR}'",
        )
    return next(
        (judged for each in accelerators if (judged := _accelerator(each))), ok("the options fit")
    )


def service_options(words: Sequence[str]) -> list[str]:
    """Dataflow's service options and experiments among a pipeline's options: `--flag=a,b`, `--flag a,b`, any number of times."""
    found, follows = [], False
    for word in words:
        flag = _FLAGS.fullmatch(word)
        value = word if follows and not word.startswith("--") else flag[1] if flag else None
        found += [each.strip() for each in (value or "").split(",")]
        follows = flag is not None and flag[1] is None
    return [each for each in found if each]


def _accelerator(text: str) -> Judged | None:
    """What is wrong with `type:T;count:N;install-nvidia-driver[:VERSION];use_nvidia_mps`; None where nothing is."""
    fields = {
        key: value for key, _, value in (each.partition(":") for each in text.split(";") if each)
    }
    strange = [key for key in fields if key not in _FIELDS]
    if strange:
        why = f"it is none of {', '.join(sorted(_FIELDS))}"
        return fail(f"{strange[0]} in worker_accelerator is not known", why, ACCELERATOR)
    if not fields.get("type"):
        return fail("no type in worker_accelerator", "the workers get no GPU", ACCELERATOR)
    if "count" not in fields and len(fields) == 1:
        why = "a semicolon that is not in quotes ends a shell's command"
        return fail(
            "worker_accelerator ends after its type",
            why,
            f"--dataflow_service_options='{ACCELERATOR}'",
        )
    if fields.get("count") != "1":
        return fail(
            f"count is {fields.get('count') or 'not given'}",
            "MPS is for workers with one GPU",
            "count:1 in worker_accelerator",
        )
    if "install-nvidia-driver" not in fields:
        why = "no driver is installed on the workers, and their GPU is not to be used"
        return fail(
            "install-nvidia-driver is not among worker_accelerator's fields",
            why,
            "append ;install-nvidia-driver to worker_accelerator",
        )
    if "use_nvidia_mps" not in fields:
        return warn(
            "use_nvidia_mps is not asked for",
            "workers time-slice the GPU",
            "append ;use_nvidia_mps to worker_accelerator",
        )
    version = fields["install-nvidia-driver"]
    if version not in {"", "default", "latest", "5xx"}:
        return warn(
            f"install-nvidia-driver:{version} is not known",
            "default, latest and 5xx are",
            "install-nvidia-driver in worker_accelerator",
        )
    return None
