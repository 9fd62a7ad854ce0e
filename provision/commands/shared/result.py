"""What every use case returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from provision.core.errors import ProvisionError


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: the document of `--json`, the exit code, text for people, errors.

    `text` goes to standard output; `errors` are failures beside it, which go to standard error.
    """

    document: dict[str, Any]
    exit_code: int = 0
    text: str = ""
    errors: tuple[ProvisionError, ...] = ()
