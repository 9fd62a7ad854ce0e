"""The error of a check as the check's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from provision.core.errors import CloudAuthError, ProvisionError
from provision.report.checks import Check, Verdict

Subject = TypeVar("Subject")


def error_as_check(
    name: str, check: Callable[[Subject], Sequence[Check]], subject: Subject
) -> Sequence[Check]:
    """Return what `check` returns for the subject; its error is a failed check of that name.

    A missing permission is `unknown`, not a failure.
    """
    try:
        return check(subject)
    except CloudAuthError as error:
        return [Check(name, Verdict.UNKNOWN, error.what, error.why, error.fix)]
    except ProvisionError as error:
        return [Check(name, Verdict.FAIL, error.what, error.why, error.fix)]
