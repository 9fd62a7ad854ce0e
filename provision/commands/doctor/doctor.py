"""`doctor`: every check that is possible before money is spent, each with its fact and remedy.

The checks are independent, so a failed one hides no other. Those that need the cloud are `unknown`
while it cannot be asked. Nothing is changed, here or in the cloud.
"""

from __future__ import annotations

from collections.abc import Iterator

from provision.commands.doctor.access_checks import egress_checks, iap_checks, registry_checks
from provision.commands.doctor.cloud_checks import CloudChecks
from provision.commands.doctor.error_as_check import error_as_check
from provision.commands.doctor.machine_checks import (
    key_checks,
    state_checks,
    tool_checks,
    unfinished_vm_checks,
)
from provision.commands.doctor.settings_checks import (
    driver_checks,
    price_checks,
    settings_checks,
)
from provision.commands.shared.result import TaskResult
from provision.core.errors import EXIT_FAILED
from provision.project.project import Project
from provision.report.checks import Check, Verdict, checks_document, checks_lines, columns, count


def doctor(project: Project) -> TaskResult:
    """Return all checks; exit code 1 when one failed."""
    checks = list(_run_checks(project))
    failed = count(checks, Verdict.FAIL)
    document = {**checks_document(checks), "ok": not failed}
    text = "\n".join(checks_lines(checks, width=columns()))
    return TaskResult(document, EXIT_FAILED if failed else 0, text)


def _run_checks(project: Project) -> Iterator[Check]:
    """The checks in the order in which they are printed."""
    state = state_checks(project)
    yield from state
    yield from error_as_check("settings", settings_checks, project)
    yield from error_as_check("driver", driver_checks, project)
    if not state:
        yield from error_as_check("key", key_checks, project)
    yield from error_as_check("tools", tool_checks, project)
    if not state:
        yield from error_as_check("left-behind", unfinished_vm_checks, project)
    yield from CloudChecks(project).run()
    yield from error_as_check("registries", registry_checks, project)
    yield from error_as_check("iap", iap_checks, project)
    yield from error_as_check("egress", egress_checks, project)
    yield from error_as_check("price", price_checks, project)
