"""The command line: one Invoke collection per noun. `tasks.py` of a project holds `namespace = namespace_for(__file__)`.

Importing this package must stay as cheap as importing Invoke: `invoke --list` pays for it. Everything else is imported
by a task when it runs.
"""

from __future__ import annotations

from provision.cli.namespace import namespace_for

__all__ = ["namespace_for"]
