"""When Invoke itself fails on a settings file: the reason in three lines and exit 2, where Invoke shows a traceback.

Invoke reads its files before any task runs, and hands on whatever the YAML parser raises. The files
are read again here, by a reader that knows lines and columns.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from provision.cli.config import load_settings, runtime_path
from provision.cli.output import Output
from provision.core.errors import SettingsError

_READERS = frozenset({"invoke.config", "invoke.env"})


def explain(project_dir: Path, error: BaseException) -> int | None:
    """Tell the error of the settings that made Invoke raise `error`, and return its exit code; None when there is none."""
    if not _raised_while_reading(error.__traceback__):
        return None
    words = sys.argv[1:]
    ours = words[: words.index("--")] if "--" in words else words
    try:
        load_settings(project_dir, os.environ, {}, runtime_path(words, os.environ))
    except SettingsError as found:
        return Output(as_json="--json" in ours).failed(found)
    return None


def _raised_while_reading(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") in _READERS:
            return True
        trace = trace.tb_next
    return False
