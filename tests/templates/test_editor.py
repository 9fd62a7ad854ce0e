"""devcontainer.json describes the container that `docker run` would make."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from provision.core.errors import UsageError
from provision.core.model import Facts
from provision.resources import Container
from provision.resources.container import WORKSPACE
from provision.templating import devcontainer

IMAGE = "provision/worker:0123456789ab"
FACTS = Facts()

SCHEMA = {
    # The part of the specification's devContainer.base.schema.json that an image-based container
    # uses.
    "type": "object",
    "additionalProperties": False,
    "required": ["image"],
    "dependentRequired": {
        "workspaceMount": ["workspaceFolder"],
        "workspaceFolder": ["workspaceMount"],
    },
    "properties": {
        "name": {"type": "string"},
        "image": {"type": "string"},
        "runArgs": {"type": "array", "items": {"type": "string"}},
        "workspaceMount": {
            "type": "string",
            "pattern": r"^source=[^,]+,target=/[^,]*,type=(bind|volume)$",
        },
        "workspaceFolder": {"type": "string", "pattern": "^/"},
        "remoteUser": {"type": "string"},
        "remoteEnv": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "overrideCommand": {"type": "boolean"},
    },
}


def container(**fields: Any) -> Container:
    return Container(name="container", container="worker", image=IMAGE, **fields)


def rendered(box: Container, *, gpu_count: int = 1) -> dict[str, Any]:
    """The document that an editor reads."""
    options = [str(option) for option in box.editor_options(FACTS, gpu_count=gpu_count)]
    text = devcontainer(
        name="worker on dev",
        image=box.image,
        options=options,
        volume=box.work_volume,
        folder=WORKSPACE,
    )
    document = json.loads(text)
    Draft202012Validator(SCHEMA).validate(document)
    assert isinstance(document, dict)
    return document


def test_document_holds_image_options_and_workspace() -> None:
    assert rendered(container(volumes=("/mnt/data:/data:ro",))) == {
        "name": "worker on dev",
        "image": IMAGE,
        "runArgs": [
            "--init", "--restart", "no", "--network", "host", "--shm-size", "1g",
            "--ulimit", "nofile=16384:16384",
            "--volume", "/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro",
            "--volume", "/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro",
            "--volume", "/mnt/data:/data:ro",
            "--env", "MKL_NUM_THREADS=1", "--env", "OMP_NUM_THREADS=1",
            "--env", "OPENBLAS_NUM_THREADS=1", "--env", "TF_FORCE_GPU_ALLOW_GROWTH=true",
            "--device", "/dev/nvidia0", "--device", "/dev/nvidiactl",
            "--device", "/dev/nvidia-uvm",
        ],
        "workspaceMount": "source=worker-workspace,target=/workspace,type=volume",
        "workspaceFolder": "/workspace",
        "remoteUser": "root",
        "remoteEnv": {
            "PATH": "/usr/local/nvidia/bin:${containerEnv:PATH}",
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:${containerEnv:LD_LIBRARY_PATH}",
        },
        "overrideCommand": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "box",
    [
        container(),
        container(gpu=False, shm_size="8g"),
        container(privileged=True),
        container(joins="worker-mps", volumes=("pipe:/run/mps",)),
        container(shares=True, env={"A": "b c"}),
    ],
)
def test_editor_gets_every_option_that_it_does_not_set_itself(box: Container) -> None:
    run = [str(option) for option in box.run_options(FACTS)]
    for own in (("--entrypoint", "sleep"), ("--workdir", WORKSPACE)):
        at = run.index(own[0])
        assert tuple(run[at : at + 2]) == own
        del run[at : at + 2]
    at = run.index(f"{box.work_volume}:{WORKSPACE}")
    del run[at - 1 : at + 1]
    assert rendered(box, gpu_count=0)["runArgs"][: len(run)] == run


@pytest.mark.parametrize(
    ("box", "nodes"),
    [
        (container(), ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]),
        (container(privileged=True), []),
        (container(gpu=False), []),
    ],
)
def test_device_nodes_are_named_unless_all_are_passed(box: Container, nodes: list[str]) -> None:
    words = rendered(box, gpu_count=2)["runArgs"]
    assert [value for flag, value in pairwise(words) if flag == "--device"] == nodes


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")).filter(
        lambda text: "${" not in text
    )
)
def test_value_of_a_variable_is_kept(value: str) -> None:
    assert f"X={value}" in rendered(container(env={"X": value}))["runArgs"]


def test_variable_of_the_editor_is_refused() -> None:
    with pytest.raises(UsageError, match="described") as caught:
        rendered(container(env={"X": "${localEnv:HOME}"}))
    assert "localEnv" in caught.value.why
