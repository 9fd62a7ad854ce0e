"""The command line of this process: its words, the program's name, the user's standard input."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def own_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words before `--`: flags and tasks."""
    return words[: words.index("--")] if "--" in words else words


def program_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words after `--`, for the user's program, as typed; Invoke joins them."""
    return tuple(words[words.index("--") + 1 :]) if "--" in words else ()


def program_name() -> str:
    """Return the name of this program for messages: `invoke`, `inv` or `provision`."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def runtime_config_path(words: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return the settings file given with -f, --config or INVOKE_RUNTIME_CONFIG.

    `words` is the command line without the program's name.
    """
    path = env.get("INVOKE_RUNTIME_CONFIG")
    own = own_words(words)
    for index, word in enumerate(own):
        if word in {"-f", "--config"}:
            path = own[index + 1] if index + 1 < len(own) else path
        elif word.startswith("--config="):
            path = word.partition("=")[2]
        elif word.startswith("-f") and not word.startswith("--"):
            path = word[2:].removeprefix("=")
    return path


def redirected_stdin() -> int | None:
    """Return the file descriptor of standard input if it is a pipe, a file or a socket.

    The user's program reads it. Returns None for a terminal, which this program reads itself, and
    for a closed standard input.
    """
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced by an object without file
        return None
    is_input = stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
    return descriptor if is_input else None
