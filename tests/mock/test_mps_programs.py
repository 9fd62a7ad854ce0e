"""Programs of the user on a host where MPS is on, or should be: what they see, what they are told, how they are ended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision import app
from provision.app import Done
from provision.testing import MockHost
from tests.mock.sharing import HERE, IMAGE, Shared

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

ATTACH = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
raise SystemExit(cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
"""
WORDS = ["python", "-c", ATTACH]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A host with two GPUs, and a container whose image sets CUDA_VISIBLE_DEVICES."""
    with MockHost(gpu_count=2) as host:
        (host.state / "registry.json").write_text(json.dumps({IMAGE: {"Env": ["CUDA_VISIBLE_DEVICES=1", "PATH=/usr/bin:/bin"]}}))
        made = Shared(tmp_path_factory.mktemp("programs"), host)
        assert made.up().exit_code == 0
        yield made


def once(box: Shared, words: list[str]) -> Done:
    return app.dev_exec(box.session, HERE, words)


def fed(box: Shared, words: list[str]) -> Done:
    with Path(os.devnull).open("rb") as nothing:
        return app.dev_exec(replace(box.session, stdin=nothing.fileno()), HERE, words)


def several(box: Shared, words: list[str]) -> Done:
    return app.dev_exec(box.session, HERE, words, count=2)


RUNS = pytest.mark.parametrize("run", [once, fed, several])
Run = Callable[[Shared, list[str]], Done]


@RUNS
def test_the_gpu_that_the_image_names_is_not_seen_where_the_settings_choose_one(box: Shared, run: Run) -> None:
    """Clients count the daemon's devices from 0 again, so an index that is good without MPS is an error with it."""
    box.set(gpu="1")
    box.enable()
    assert run(box, WORDS).exit_code == 0
    assert run(box, ["printenv", "CUDA_VISIBLE_DEVICES"]).exit_code == 1
    box.set()
    assert run(box, ["sh", "-c", "exit $CUDA_VISIBLE_DEVICES"]).exit_code == 1, "without mps.gpu the image has its way"
