"""The command line: one Invoke collection per noun. `tasks.py` of a project holds `namespace = namespace_for(__file__)`.

Importing this package must stay as cheap as importing Invoke: `invoke --list` pays for it. Everything else is imported
by a task when it runs.
"""

from __future__ import annotations

import sys

# Invoke switches byte code off before it loads a tasks file: each command would compile whatever it imports anew.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from provision.cli.namespace import namespace_for  # noqa: E402 - the line above must come first

__all__ = ["namespace_for"]
