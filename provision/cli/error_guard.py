"""Explains an exception that Invoke raises while it reads settings files, instead of a traceback.

Invoke reads its files before a task runs, and passes on the YAML parser's exceptions. The files are
read again here, by a reader that reports lines and columns.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from provision.cli.command_line import runtime_config_path
from provision.cli.config import load_settings
from provision.cli.output import report_early_error
from provision.core.errors import SettingsError

_READERS = frozenset({"invoke.config", "invoke.env"})


def explain(project_dir: Path, error: BaseException) -> int | None:
    """Print the `SettingsError` behind an exception of Invoke's, and return its exit code.

    Returns None when the exception has another cause.
    """
    if not _raised_while_reading(error.__traceback__):
        return None
    try:
        load_settings(project_dir, os.environ, {}, runtime_config_path(sys.argv[1:], os.environ))
    except SettingsError as settings_error:
        return report_early_error(settings_error)
    return None


def _raised_while_reading(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") in _READERS:
            return True
        trace = trace.tb_next
    return False
