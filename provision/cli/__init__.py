"""The command line: one Invoke collection per noun. `tasks.py` of a project holds `namespace = namespace_for(__file__)`.

Importing this package must stay as cheap as importing Invoke: `invoke --list` pays for it.
Everything else is imported by a task when it runs.
"""

from __future__ import annotations

from provision.cli.environment import collect_less, keep_byte_code

keep_byte_code()
collect_less()

from provision.cli.namespace import namespace_for  # noqa: E402 - the lines above must come first

__all__ = ["namespace_for"]
