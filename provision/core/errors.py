"""The error tree. Every error states what failed on which thing, why, and which command to try.

ProvisionError                                              exit
├── UsageError                                                 2
│   ├── SettingsError      a key, its value, the file it came from, what is allowed
│   ├── TemplateError      a template that is missing, broken or lacks a variable
│   └── RecipeError        a recipe whose resources contradict each other
├── CloudError                                                 5
│   ├── CloudAuthError · CloudNotFound
│   ├── QuotaExceeded
│   └── NoCapacity         with every zone that was tried and its reason
├── CleanupFailed          names what may be left behind               6
├── HostError                                                  1
│   ├── Unreachable · TunnelRefused                            4
│   ├── HostKeyMismatch                                        4
│   ├── CommandFailed      with the last lines of its output
│   └── CommandTimeout
├── ResourceError                                              1
│   ├── ProbeUnreadable
│   └── NotConverged       with the remaining difference
└── Interrupted                                              130
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_WOULD_CHANGE = 3
EXIT_UNREACHABLE = 4
EXIT_CLOUD = 5
EXIT_LEFT_BEHIND = 6
EXIT_OWN_FAILURE = 125
"""Our own failure in a task that otherwise exits with the status of the user's program."""
EXIT_INTERRUPTED = 130

_SEVERITY = (
    EXIT_INTERRUPTED,
    EXIT_LEFT_BEHIND,
    EXIT_CLOUD,
    EXIT_UNREACHABLE,
    EXIT_FAILED,
    EXIT_USAGE,
    EXIT_WOULD_CHANGE,
)


_TASK = re.compile(r"\binvoke (?=[a-z]+\.[a-z])")


def with_program(text: str, program: str) -> str:
    """The text with `invoke` replaced by the user's program in front of every task.

    Resources, tables and checks write `invoke vm.list`. The user may have started `provision`.
    """
    return _TASK.sub(lambda task: f"{program} ", text)


def worst_exit(codes: Sequence[int]) -> int:
    """The exit status of several hosts: the first of 130, 6, 5, 4, 1, 2, 3, 0 that occurred."""
    return next((code for code in _SEVERITY if code in codes), EXIT_OK)


class ProvisionError(Exception):
    """What failed, on which thing (`where`), the verbatim reason (`why`), what to try (`fix`)."""

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        lines = [head]
        if self.why:
            lines.append(f"  why: {_indent(self.why)}")
        if self.fix:
            lines.append(f"  try: {_indent(self.fix)}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The error as `--json` prints it."""
        return {"what": self.what, "where": self.where, "why": self.why, "fix": self.fix}


def _indent(text: str) -> str:
    return text.rstrip().replace("\n", "\n       ")


class UsageError(ProvisionError):
    """The command line or the settings ask for something impossible."""

    exit_code = EXIT_USAGE


class SettingsError(UsageError):
    """A setting that is unknown, of the wrong type or impossible beside another one."""


class TemplateError(UsageError):
    """A template that is missing, does not parse, or uses an undefined variable."""


class RecipeError(UsageError):
    """A recipe whose resources contradict each other: two of one name, a need that comes later."""


class CloudError(ProvisionError):
    """The cloud refused, or could not be asked."""

    exit_code = EXIT_CLOUD


class CloudAuthError(CloudError):
    """No credentials, or credentials that may not do this."""


class CloudNotFound(CloudError):
    """The named thing does not exist in the cloud."""


class QuotaExceeded(CloudError):
    """A quota is used up."""


class NoCapacity(CloudError):
    """No zone had the machine; `tried` holds (zone, result, verbatim reason) in the order tried."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        why: str = "",
        fix: str = "",
        tried: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        super().__init__(what, where=where, why=why, fix=fix)
        self.tried = tuple(tried)

    def as_dict(self) -> dict[str, Any]:
        """The error as `--json` prints it, with every zone that was tried."""
        tried = [
            {"zone": zone, "result": result, "reason": reason}
            for zone, result, reason in self.tried
        ]
        return {**super().as_dict(), "tried": tried}


class CleanupFailed(ProvisionError):
    """A resource may be left behind and may cost money; the message names it."""

    exit_code = EXIT_LEFT_BEHIND


class HostError(ProvisionError):
    """A host failed; `where` is its name."""


class Unreachable(HostError):
    """No connection, or the connection was lost."""

    exit_code = EXIT_UNREACHABLE


class TunnelRefused(Unreachable):
    """The tunnel to the host was refused for a reason that waiting does not remove."""


class HostKeyMismatch(HostError):
    """The host's key is unknown or not the pinned one."""

    exit_code = EXIT_UNREACHABLE


class CommandFailed(HostError):
    """A command on the host ended with a non-zero status; `why` carries its last lines."""


class CommandTimeout(HostError):
    """A command on the host did not end in its time."""


class ResourceError(ProvisionError):
    """A resource could not be read or brought to its desired state."""


class ProbeUnreadable(ResourceError):
    """A probe printed what its resource cannot read."""


class NotConverged(ResourceError):
    """A resource still differs after its change."""


class Interrupted(ProvisionError):
    """The user pressed Ctrl-C."""

    exit_code = EXIT_INTERRUPTED
