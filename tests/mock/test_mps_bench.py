"""mps.bench on the mock: refused, and without that refusal a whole run without the GPU work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from provision.commands.mps.bench import preparation
from provision.commands.mps.bench.bench import mps_bench
from provision.commands.mps.bench.options import parse_options
from provision.commands.shared.result import TaskResult
from provision.core.errors import EXIT_USAGE, UsageError
from provision.core.model import Event, Note
from provision.testing import MockHost
from tests.mock.plain_client import SHELL, eventually
from tests.mock.sharing import HERE, Shared
from tests.mock.workspace import Workspace

pytestmark = pytest.mark.timeout(240)

CLIENT = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
status = status or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
cuda.cuDeviceGetCount(ctypes.byref(count))
print("sees", count.value, "of", os.environ.get("CUDA_VISIBLE_DEVICES", "all"), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(status)
"""


def test_bench_is_refused_on_a_mock(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock is refused before a missing matplotlib is."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert workspace.create().exit_code == 0
    asked = parse_options(clients="1,2", rounds="1")
    with pytest.raises(UsageError) as caught:
        mps_bench(workspace.project, HERE, asked)
    assert caught.value.exit_code == EXIT_USAGE
    assert (
        str(caught.value).splitlines()[0]
        == "dev: mps.bench measures a GPU; this is a mock, which has none"
    )
    assert not (workspace.folder / "mps-bench").exists()


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A host with two GPUs, of which the second is shared, and a project with a CUDA program."""
    with MockHost(shell=SHELL, gpu_count=2) as host:
        made = Shared(tmp_path_factory.mktemp("bench"), host, gpu=1)
        assert made.up().exit_code == 0
        workspace = made.new_project().project_dir
        subprocess.run(["git", "init", "-q", str(workspace)], check=True)
        (workspace / "client.py").write_text(CLIENT)
        yield made


@pytest.fixture
def unrefused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock is not refused. The tokens are those of this process: tests run side by side."""
    monkeypatch.setattr(preparation, "_check_not_mock", lambda facts, transport: None)
    numbers = count()
    monkeypatch.setattr(preparation, "new_token", lambda: f"{os.getpid():08x}{next(numbers):08x}")


EVENTS: list[Event] = []


def run(box: Shared, seconds: str, **flags: Any) -> TaskResult:
    EVENTS.clear()
    command = f"python client.py {seconds}"
    asked = parse_options(
        command=command, clients="1,2", modes="none,mps", rounds="1", with_chart=False, **flags
    )
    return mps_bench(replace(box.project, emit=EVENTS.append), HERE, asked)


@pytest.mark.slow
@pytest.mark.usefixtures("unrefused")
def test_cells_prove_attachment_on_the_chosen_gpu(box: Shared) -> None:
    before = left()
    done = run(box, "0.5")
    assert (done.exit_code, done.document["failures"], done.document["disturbed"]) == (0, [], []), (
        done.text
    )
    assert [(each["mode"], each["clients"]) for each in done.document["cells"]] == [
        ("none", 1),
        ("mps", 1),
        ("none", 2),
        ("mps", 2),
    ]
    assert done.document["gpu_uuid"].startswith("GPU-00000001-")
    assert left() == before


@pytest.mark.slow
@pytest.mark.usefixtures("unrefused")
@pytest.mark.parametrize(
    ("how", "code", "why"),
    [("ctrl-c", 130, "interrupted"), ("connection", 4, "the connection was ")],
)
def test_interrupted_cell_keeps_figures_and_ends_processes(
    box: Shared, how: str, code: int, why: str
) -> None:
    part = box.folder / "project" / "mps-bench" / "mps-bench-partial.json"
    part.unlink(missing_ok=True)
    before = left()

    def cut() -> None:
        if eventually(lambda: part.exists() and bool(processes("client.py")), 60):
            if how == "ctrl-c":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                box.host.server.drop_connections()

    thread = threading.Thread(target=cut)
    thread.start()
    done = run(box, "1.5")
    thread.join(60)
    assert (done.exit_code, done.document["complete"], done.document["why"].startswith(why)) == (
        code,
        False,
        True,
    )
    found = json.loads(part.read_text())
    assert (found["complete"], [(each["mode"], each["clients"]) for each in found["cells"]]) == (
        False,
        [("none", 1)],
    )
    assert eventually(lambda: not processes("client.py"), 20)
    behind = left() - before
    assert len(behind) == (0 if how == "ctrl-c" else 1), (
        "without a connection the folder cannot be removed"
    )
    assert [note for note in notes() if "may be left behind" in note] == [
        f"may be left behind in container worker: /tmp/{name}" for name in behind
    ]
    for name in behind:
        shutil.rmtree(f"/tmp/{name}")


def notes() -> list[str]:
    return [event.text for event in EVENTS if isinstance(event, Note)]


def left() -> set[str]:
    """Benchmark folders of this process. A container of the mock uses this machine's /tmp."""
    return {path.name for path in Path("/tmp").glob(f".provision-bench-{os.getpid():08x}")}


def processes(word: str) -> list[str]:
    """Command lines of the running benchmarks that end in the program and its argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            if (
                f"PROVISION_RUN={os.getpid():08x}".encode()
                not in (path.parent / "environ").read_bytes()
            ):
                continue
        except OSError:
            continue
        if len(words) > 2 and words[-3] == word.encode():
            found.append(" ".join(map(os.fsdecode, words)))
    return found
