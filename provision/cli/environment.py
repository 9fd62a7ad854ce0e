"""What is arranged around Invoke: variables that set settings (INVOKE_PROVISION_KEY), standard streams, byte code."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import MutableMapping

ENV_PREFIX = "INVOKE_PROVISION_"
ENV_HIDDEN = "_" + ENV_PREFIX
_NEW_OBJECTS = 10_000


def hide_environment(env: MutableMapping[str, str]) -> None:
    """Put variables of ours out of Invoke's sight, which would cast them by what the files happen to hold (a list: traceback).

    They stay in the environment, under a name with an underscore before it, for this process and
    its children.
    """
    for name in [name for name in env if name.startswith(ENV_PREFIX)]:
        env["_" + name] = env.pop(name)


def ready_streams() -> None:
    """Let standard streams that our caller closed (`<&-`, cron) lead nowhere, as sshd does: Python says None of them.

    Their numbers must not go to the next file that is opened either, which children would then
    write to. And whatever the locale, standard output takes every letter.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                nothing = os.open(os.devnull, os.O_RDWR)  # the lowest free number
                os.dup2(nothing, number)
                os.set_inheritable(number, True)
                if nothing != number:
                    os.close(nothing)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - lives as long as we do
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def keep_byte_code() -> None:
    """Let Python write byte code again, unless its user forbade it.

    Invoke switches it off between reading its own flags and loading a tasks file: whatever a task
    imports would be compiled anew in each run, half a second of it.
    """
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)


def collect_less() -> None:
    """Let Python look for unreachable cycles after every 10,000 new objects instead of 700, and not at its end.

    A command imports a lot and throws little away: looking took a tenth of its start, and 50 ms
    after its last word.
    """
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
