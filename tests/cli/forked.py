"""Runs stock Invoke with the fake use cases in a process forked from one that has imported them.

A fork costs a tenth of a new interpreter. Tests of the start itself run `launch.py` instead.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import invoke.main

import provision.__main__
import provision.cli.execution
import provision.cli.main  # noqa: F401 - what a fork finds imported
from tests.cli.fakes import fake_modules

TIMEOUT_S = 60


def run_forked(words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Run `invoke WORDS` in `cwd` and return exit status, standard output and standard error."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        handles = [multiprocessing.reduction.DupFd(file.fileno()) for file in (out, err)]
        process = context.Process(target=_run, args=(list(words), cwd, dict(env), *handles))
        process.start()
        process.join(TIMEOUT_S)
        status = process.exitcode
        if status is None:
            process.kill()
            raise TimeoutError(f"invoke {' '.join(words)} did not end in {TIMEOUT_S} s")
        process.close()
        return status, _content(out.fileno()), _content(err.fileno())


def _content(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def _run(words: list[str], cwd: Path, env: dict[str, str], *handles: object) -> None:
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, handle in enumerate(handles, 1):
        os.dup2(handle.detach(), number)  # type: ignore[attr-defined]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.modules.update(fake_modules())
    sys.argv = ["invoke", *words]
    try:
        invoke.main.program.run()
    except Exception:  # noqa: BLE001 - multiprocessing would print a traceback of its own
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
