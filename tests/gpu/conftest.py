"""A host with a real NVIDIA driver: the lab with this machine's GPU, and the installed program."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.base_image import BaseImage
from lab.host import Lab
from provision import templating
from tests.lab.conftest import GPU, image, lab

__all__ = ["image", "lab"]

ROOT = Path(__file__).parent.parent.parent
RESULTS = os.environ.get("PROVISION_LAB_RESULTS")
"""A folder for what is measured: JSON, report and charts; nothing is kept without it."""
TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests, and skip them without PROVISION_LAB_GPU."""
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if not GPU.real:
            item.add_marker(pytest.mark.skip(reason="needs a real NVIDIA driver: make gpu"))


@dataclass(frozen=True)
class CommandResult:
    """Exit status, outputs and duration of a command."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def document(self) -> dict[str, Any]:
        """The document that it printed with --json."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    def __str__(self) -> str:
        return f"status {self.status} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


@dataclass
class Machine:
    """A project whose only host is the lab with the real GPU."""

    project: Path
    environ: Mapping[str, str]
    entry: Mapping[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def configure(self, **changes: Any) -> None:
        """Write the project's settings."""
        data = {"name": "lab", "hosts": {"lab": dict(self.entry)}, **self.settings, **changes}
        (self.project / "invoke.yaml").write_text(json.dumps({"provision": data}, indent=2))

    def __call__(self, *words: str, timeout_s: float = 300.0) -> CommandResult:
        """Run a task and wait for its end."""
        started = time.monotonic()
        with self.start(*words) as child:
            try:
                out, err = child.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                raise
        return CommandResult(child.returncode, out, err, time.monotonic() - started)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a task."""
        argv = [sys.executable, "-m", "provision", *words]
        return subprocess.Popen(
            argv,
            cwd=self.project,
            env=dict(self.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ok(self, *words: str, timeout_s: float = 300.0) -> dict[str, Any]:
        """The document of a task that has to succeed."""
        result = self(*words, "--json", timeout_s=timeout_s)
        assert result.status == 0, f"{' '.join(words)}: {result}"
        return result.document

    def inside(self, source: str, *, status: int | None = 0) -> str:
        """Run shell source in the worker container; returns its output."""
        result = self("dev.exec", "--", "sh", "-c", source)
        assert status is None or result.status == status, f"{source}: {result}"
        return result.out

    def eventually(self, is_so: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Wait until `is_so` returns a true value, and return it."""
        deadline = time.monotonic() + timeout_s
        while not (value := is_so()):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
            time.sleep(0.2)
        return value


def frameworks() -> tuple[Sequence[str], Mapping[str, str]]:
    """Volumes and variables that give the container this machine's PyTorch, if there is one."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return (), {}
    site = Path(spec.origin).resolve().parent.parent
    top = f"/{site.parts[1]}"
    return (() if top == "/usr" else (f"{top}:{top}:ro",)), {"PYTHONPATH": str(site)}


@pytest.fixture(scope="session")
def machine(
    lab: Lab, image: BaseImage, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """The lab, booted like a VM and reached by the program over SSH."""
    lab.user_data = templating.user_data({})
    lab.reset_disk()
    folder = tmp_path_factory.mktemp("gpu")
    project = folder / "project"
    project.mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / "client.py").write_text((Path(__file__).parent / "client.py").read_text())
    host = lab.host
    entry = {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "identity": host.identity,
        "host_key": host.host_key,
    }
    volumes, env = frameworks()
    worker = {"python": image.python, "volumes": list(volumes), "env": dict(env)}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environ = {**os.environ, "PYTHONPATH": path, "XDG_STATE_HOME": str(folder / "state")}
    made = Machine(project, environ, entry, {"worker": worker})
    made.configure()
    yield made
    made("dev.down")
    lab.user_data = ""
