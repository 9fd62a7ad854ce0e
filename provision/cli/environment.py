"""Prepares the process for Invoke: variables, standard streams, byte code, garbage collector."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import MutableMapping

ENV_PREFIX = "INVOKE_PROVISION_"
"""Variables INVOKE_PROVISION_KEY set settings."""
ENV_HIDDEN = "_" + ENV_PREFIX
_COLLECTOR_THRESHOLD = 10_000


def hide_settings_variables(env: MutableMapping[str, str]) -> None:
    """Rename our variables, so that Invoke does not convert them by the type of a file's value.

    For a list, that conversion ends in a traceback. They get an underscore in front, for this
    process and its children.
    """
    for name in [name for name in env if name.startswith(ENV_PREFIX)]:
        env["_" + name] = env.pop(name)


def open_standard_streams() -> None:
    """Open closed standard streams (`<&-`, cron) on /dev/null, as sshd does.

    Python sets them to None, and their numbers would go to the next files that are opened, to which
    child processes would then write. Standard output also accepts every character, whatever the
    locale.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            _open_null(number)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _open_null(number: int) -> None:
    """Open /dev/null as this file descriptor if it is closed."""
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)  # the lowest free number
        os.dup2(null, number)
        os.set_inheritable(number, True)
        if null != number:
            os.close(null)


def enable_byte_code() -> None:
    """Let Python write byte code again, unless the user disabled it.

    Invoke disables it before it loads a tasks file. Every run would then compile all modules that a
    task imports, which takes half a second.
    """
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)


def relax_garbage_collector() -> None:
    """Let Python collect cycles after 10,000 new objects instead of 700, and not at exit.

    A command imports much and drops little: collecting took a tenth of its start, and 50 ms at its
    end.
    """
    gc.set_threshold(_COLLECTOR_THRESHOLD, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
