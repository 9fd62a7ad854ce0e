"""The command line: one Invoke collection per noun, and `namespace_for` for a project's tasks.py.

Importing this package must cost no more than importing Invoke, because `invoke --list` pays for it.
Each task imports what it needs when it runs.
"""

from __future__ import annotations

from provision.cli.environment import enable_byte_code, relax_garbage_collector

enable_byte_code()
relax_garbage_collector()

from provision.cli.namespace import namespace_for  # noqa: E402 - the lines above must come first

__all__ = ["namespace_for"]
