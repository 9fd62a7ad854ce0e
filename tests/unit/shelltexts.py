"""Checks of script files by several shells and by shellcheck."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.shells.shells import Shell

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
EVERYWHERE = (
    "SC1007",  # `name= other=` clears a variable, on purpose
    "SC2015",  # `a && b || c` where c handles the failure of either
    "SC2016",  # '{{.State}}' and scripts for another shell stand in single quotes
)
"""Rules that do not apply to any text."""


def unparsed(shell: Shell, files: Sequence[str]) -> str:
    """The messages of a shell on the files that it cannot parse; empty for none."""
    done = shell.run('for file; do sh -n "$file" || echo "$file"; done', *files)
    return (done.stdout + done.stderr).decode()


def shellchecked(files: Sequence[str], *excluded: str) -> str:
    """What shellcheck finds, rules `excluded` and EVERYWHERE aside; empty for nothing."""
    rules = ",".join((*EVERYWHERE, *excluded))
    words = [str(SHELLCHECK), "--norc", "--shell=sh", f"--exclude={rules}", "--format=gcc", *files]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    return done.stdout + done.stderr


def shellchecked_as_it_stands(files: Sequence[str]) -> str:
    """What shellcheck finds with the .shellcheckrc above each file; empty for nothing."""
    words = [str(SHELLCHECK), "--format=gcc", *files]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    return done.stdout + done.stderr
