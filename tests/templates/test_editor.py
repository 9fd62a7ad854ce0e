"""devcontainer.json: what an editor is told is what `docker run` was told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from provision.core.errors import UsageError
from provision.templating import devcontainer

IMAGE = "provision/worker:0123456789ab"
OPTIONS = (
    "--init", "--restart", "no", "--network", "host", "--entrypoint", "sleep", "--shm-size", "1g", "--ulimit", "nofile=16384:16384",
    "--workdir", "/workspace", "--volume", "worker-workspace:/workspace", "--volume", "/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro",
    "--volume=/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro", "--device", "/dev/nvidia0", "--env", "OMP_NUM_THREADS=1",
)  # fmt: skip

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


def read(
    options: Sequence[str],
    *,
    prefix: Sequence[str] = ("docker", "run", "--detach", "--name", "worker"),
) -> dict[str, Any]:
    document = json.loads(
        devcontainer([*prefix, *options, IMAGE, "infinity"], image=IMAGE, name="worker on dev")
    )
    Draft202012Validator(SCHEMA).validate(document)
    assert isinstance(document, dict)
    return document


def test_it_describes_the_same_container() -> None:
    assert read(OPTIONS) == {
        "name": "worker on dev",
        "image": IMAGE,
        "runArgs": [
            "--init", "--restart", "no", "--network", "host", "--shm-size", "1g", "--ulimit", "nofile=16384:16384",
            "--volume", "/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro", "--volume", "/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro",
            "--device", "/dev/nvidia0", "--env", "OMP_NUM_THREADS=1",
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


def test_the_options_alone_do_as_well() -> None:
    assert read(OPTIONS, prefix=()) == read(OPTIONS)


def test_a_folder_of_the_host_is_bound() -> None:
    mount = read(["-v", "/home/me/code:/workspace:rw", "--init"])["workspaceMount"]
    assert mount == "source=/home/me/code,target=/workspace,type=bind"


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")).filter(
        lambda text: "${" not in text
    )
)
def test_a_value_comes_back_as_it_was_given(value: str) -> None:
    assert read([*OPTIONS, "--env", f"X={value}"])["runArgs"][-1] == f"X={value}"


def test_what_an_editor_would_misread_is_refused() -> None:
    with pytest.raises(UsageError, match="described") as caught:
        read([*OPTIONS, "--env", "X=${localEnv:HOME}"])
    assert "localEnv" in caught.value.why
    with pytest.raises(UsageError, match="described"):
        read(["--init"])
    with pytest.raises(UsageError, match="described") as caught:
        devcontainer([*OPTIONS, "other:1"], image=IMAGE, name="x")
    assert "'other:1'" in caught.value.why


def test_the_value_of_an_option_is_no_option() -> None:
    options = ["--env", "--rm", "--hostname", "run", "--label", IMAGE, "--privileged", *OPTIONS]
    assert read(options)["runArgs"][:7] == options[:7]
