"""Fakes of the use cases: they return their arguments, print, fail and end in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import NotConverged, Unreachable, UsageError
from provision.core.model import (
    Change,
    HostConnected,
    HostFinished,
    HostReport,
    HostStarted,
    Note,
    Outcome,
    OutputLine,
    ResourceFinished,
    ResourceStarted,
    RunFinished,
    RunStarted,
    Status,
)
from provision.project.project import Project
from provision.report import hosts_document

__all__ = ["Project", "Targets", "TaskResult"]


def vm_create(
    project: Project, name: str, targets: Targets, *, count: int, parallel_zones: int
) -> TaskResult:
    settings = project.settings.model_dump(mode="json")
    text = f"{name} in {', '.join(settings['zones'])}"
    where = {
        "project_dir": str(project.project_dir),
        "state_dir": str(project.state_dir),
        "argv0": project.program_argv0,
    }
    return TaskResult(
        {
            "name": name,
            "targets": asdict(targets),
            "settings": settings,
            "count": [count, parallel_zones],
            **where,
        },
        0,
        text,
    )


def vm_provision(project: Project, targets: Targets) -> TaskResult:
    emit = project.emit
    emit(RunStarted(("dev", "web-10"), "vm.provision", targets.check))
    emit(HostStarted("dev"))
    emit(HostConnected("dev", 0.2))
    emit(ResourceFinished("dev", Outcome("gpu", Status.OK)))
    emit(ResourceStarted("dev", "driver"))
    emit(OutputLine("dev", "driver", "\x1b[31mfetching\x1b[0m 10%\rfetching 100%"))
    time.sleep(float(os.environ.get("FAKE_SLOW_S", "0")))
    bad = NotConverged(
        "did not converge",
        where="dev: driver",
        why="version: 535 -> 550\nand more",
        fix="invoke vm.provision --diff",
    )
    outcomes = (
        Outcome("gpu", Status.OK),
        Outcome("mount", Status.CHANGED, (Change("options", "noexec", "exec"),), 1.5),
        Outcome("driver", Status.FAILED, (Change("version", "535", "550"),), 12.345, bad),
    )
    for outcome in outcomes[1:]:
        emit(ResourceFinished("dev", outcome))
    report = HostReport("dev", outcomes, 2, 13.9)
    emit(HostFinished(report))
    finished = RunFinished(
        (report, HostReport("web-10", (Outcome("gpu", Status.OK),), 1, 0.61)), ()
    )
    emit(finished)
    return TaskResult(hosts_document(finished), 1)


def vm_list(project: Project) -> TaskResult:
    project.emit(Note("embedded mock: nothing is billed"))
    return TaskResult({"vms": []}, 0, "no VMs")


def vm_show(project: Project, name: str) -> TaskResult:
    sys.stdout.write("a line of Python's\n")
    sys.stdout.flush()
    subprocess.run(["sh", "-c", "echo a line of a child"], check=True)
    return TaskResult({"vm": {"name": name, "note": "schön"}}, 0, f"VM {name}, schön")


def vm_delete(
    project: Project, name: str, *, yes: bool, confirm: Callable[[str], bool] | None
) -> TaskResult:
    if not yes and confirm is None:
        raise UsageError(
            "needs --yes", where=name, why="there is no terminal to ask on", fix="vm.delete --yes"
        )
    deleted = yes or (confirm is not None and confirm(f"delete {name}?"))
    return TaskResult({"deleted": deleted}, 0, "deleted" if deleted else "kept")


def vm_ssh(project: Project, targets: Targets, words: Sequence[str] = ()) -> TaskResult:
    return dev_exec(project, targets, words)


def vm_ssh_config(project: Project) -> TaskResult:
    return TaskResult({"text": "Host dev\n"}, 0, "x" * 200_000)


def vm_copy(project: Project, targets: Targets, src: str, dst: str) -> TaskResult:
    return TaskResult({"src": src, "dst": dst, "host": targets.host}, 0)


def dev_exec(
    project: Project, targets: Targets, words: Sequence[str], *, count: int | None = None
) -> TaskResult:
    project.stdout("\0".join(words).encode("utf-8", "surrogateescape"))
    project.stderr(b"program's stderr\n")
    status = int(words[1]) if words[:1] == ["exit"] or words[:1] == ("exit",) else 0
    return TaskResult({"status": status, "failed_in": "program" if status else None}, status)


def dev_run(
    project: Project,
    targets: Targets,
    file: str,
    words: Sequence[str] = (),
    *,
    count: int | None = None,
) -> TaskResult:
    return TaskResult({"file": file, "words": list(words)}, 0)


def dev_shell(project: Project, targets: Targets) -> TaskResult:
    raise Unreachable("is unreachable", where="dev", why="Connection refused", fix="invoke vm.show")


def dev_up(project: Project, targets: Targets) -> TaskResult:
    project.emit(RunStarted(("dev",), "dev.up", targets.check))
    try:
        sys.stderr.write("ready\n")
        sys.stderr.flush()
        time.sleep(30)
    except KeyboardInterrupt:
        report = HostReport("dev", (Outcome("driver", Status.UNKNOWN),), 1, 0.5)
        project.emit(RunFinished((report,), (), interrupted=True))
        return TaskResult({"hosts": {}}, 130)
    return TaskResult({}, 0)


def mps_enable(project: Project, targets: Targets) -> TaskResult:
    raise ZeroDivisionError("a bug")


def mps_status(project: Project, targets: Targets, *, strict: bool = False) -> TaskResult:
    raise Unreachable("is unreachable", where="dev", why="Connection refused", fix="invoke vm.show")


def mps_disable(project: Project, targets: Targets, *, force: bool = False) -> TaskResult:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
    return TaskResult({}, 0)


def mps_explain(project: Project, text: str | None, file: str | None) -> TaskResult:
    return TaskResult({"matches": []}, 1, "nothing in it is known")


def vm_stop(project: Project, name: str) -> TaskResult:
    refused = Unreachable("was refused", where="b", why="a reason\x1b[2J", fix="invoke vm.list")
    return TaskResult({"vms": []}, 4, "a stopped", (refused,))


def mock_up(project: Project) -> TaskResult:
    for number in range(20_000):
        project.emit(Note(f"line {number}"))
    (project.state_dir / "reached").parent.mkdir(parents=True, exist_ok=True)
    (project.state_dir / "reached").write_text("the end")
    return TaskResult({}, 0, "up")
