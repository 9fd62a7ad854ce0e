"""Whether the quotas of the regions have room for the VM. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.cloud.market.catalog import Shape
from provision.cloud.market.quota import Quotas, QuotaVerdict, Room, judge_quotas, other_needs
from provision.cloud.market.quota_room import merged_lines, short_verdicts
from provision.cloud.market.zone_order import region_of
from provision.cloud.refusal_table import quota_remedy
from provision.core.model import VmSpec
from provision.report.checks import Check, Verdict

Verdicts = Sequence[QuotaVerdict]


def quota_checks(quotas: Quotas, spec: VmSpec, zones: Sequence[str], project: str) -> list[Check]:
    """Return a check for each region of `zones`, and one for all whose quotas are unknown.

    A region without room is a warning while another one has room: creation leaves it out.
    """
    shape, model, more = Shape.of(spec), spec.provisioning_model, other_needs(spec)
    by_region: dict[str, Verdicts] = {
        region: judge_quotas(quotas, shape, region, provisioning=model, more=more)
        for region in dict.fromkeys(map(region_of, zones))
    }
    short = {region for region in by_region if short_verdicts(by_region[region])}
    unknown = {
        region: verdicts
        for region, verdicts in by_region.items()
        if region not in short and any(verdict.room is Room.UNKNOWN for verdict in verdicts)
    }
    failure = Verdict.FAIL if len(short) == len(by_region) else Verdict.WARN
    checks = [
        _short_check(region, shape, verdicts, failure, project)
        if region in short
        else _room_check(region, shape, verdicts)
        for region, verdicts in by_region.items()
        if region not in unknown
    ]
    return [*checks, _unknown_check(unknown, shape, project)] if unknown else checks


def _short_check(
    region: str, shape: Shape, verdicts: Verdicts, status: Verdict, project: str
) -> Check:
    what = f"no room for {shape} in {region}"
    why = "; ".join(map(str, short_verdicts(verdicts)))
    return Check(f"quota-{region}", status, what, why, quota_remedy(project))


def _room_check(region: str, shape: Shape, verdicts: Verdicts) -> Check:
    left = ", ".join(
        f"{verdict.metric} {verdict.quota.left:g}" for verdict in verdicts if verdict.quota
    )
    return Check(f"quota-{region}", Verdict.OK, f"room for {shape}; left are {left}")


def _unknown_check(by_region: Mapping[str, Verdicts], shape: Shape, project: str) -> Check:
    regions = [*by_region]
    name = f"quota-{regions[0]}" if len(regions) == 1 else "quota"
    has = "has" if len(regions) == 1 else "have"
    what = f"it is unknown whether {', '.join(regions)} {has} room for {shape}"
    unknown = [
        verdict
        for verdicts in by_region.values()
        for verdict in verdicts
        if verdict.room is Room.UNKNOWN
    ]
    why = "; ".join(merged_lines(unknown))
    return Check(name, Verdict.UNKNOWN, what, why, quota_remedy(project))
