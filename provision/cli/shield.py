"""When Invoke itself fails on a settings file: the reason in three lines and exit 2, where Invoke shows a traceback.

Invoke reads its files before any task runs, and hands on whatever the YAML parser raises. The files are read again here,
by a reader that knows lines and columns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from provision.errors import SettingsError

Hook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_READERS = frozenset({"invoke.config", "invoke.env"})


def explain_and_exit(
    project_dir: Path, previous: Hook, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A `sys.excepthook`: ends with status 2 when the settings explain the error, else calls the hook that was there before."""
    code = explain(project_dir, error)
    if code is None:
        previous(kind, error, trace)
        return
    raise SystemExit(code)


def explain(project_dir: Path, error: BaseException) -> int | None:
    """Tell the error of the settings that made Invoke raise `error`, and return its exit code; None when there is none."""
    if not _raised_while_reading(error.__traceback__):
        return None
    from provision.cli.config import load_settings, runtime_path
    from provision.cli.output import Output

    words = sys.argv[1:]
    ours = words[: words.index("--")] if "--" in words else words
    try:
        load_settings(project_dir, os.environ, {}, runtime_path(words, os.environ))
    except SettingsError as found:
        return Output(as_json="--json" in ours, program=False, debug=False).failed(found)
    return None


def _raised_while_reading(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") in _READERS:
            return True
        trace = trace.tb_next
    return False
