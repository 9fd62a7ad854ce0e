"""The hosts that a task acts on, as the shared flags give them."""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.errors import UsageError
from provision.core.fleet import DEFAULT_FORKS, Pace


@dataclass(frozen=True)
class Targets:
    """The values of `--host`, `--limit`, `--forks`, `--serial`, `--max-fail`, `--check`, `--diff`.

    Raises `UsageError` for `--host` together with `--limit`, and for an empty `--host`.
    """

    host: str | None = None
    limit: str | None = None
    forks: int = DEFAULT_FORKS
    serial: int | None = None
    max_fail: int | None = None
    check: bool = False
    diff: bool = False

    def __post_init__(self) -> None:
        if self.host is not None and self.limit is not None:
            raise UsageError(
                "--host and --limit cannot be given together",
                why="--host names one host, --limit a pattern",
                fix="leave one of them out",
            )
        if self.host is not None and not self.host.strip():
            raise UsageError(
                "--host names no host",
                why="it is empty",
                fix="--host NAME, or leave it out for the VM of the settings",
            )

    @property
    def pace(self) -> Pace:
        """Parallel hosts, batch size and failure budget of the run."""
        return Pace(self.forks, self.serial, self.max_fail)
