"""The only loop of the program: probe everything, compare, act wave by wave, and probe again what was acted on.

exchange 1: facts and every probe -> compare -> (check? report and stop) one exchange per wave that
differs: ensure what differs, probe it again, and everything later that depends on it

So no change costs one exchange, and a change one more for each wave that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from provision.core.errors import NotConverged, ProbeUnreadable, ProvisionError, ResourceError
from provision.core.exchange import (
    ExchangeResult,
    Listener,
    SectionResult,
    exchange,
    section_error,
    tail,
)
from provision.core.facts import FACTS, read_facts
from provision.core.job import Section
from provision.core.model import (
    Change,
    Emit,
    Facts,
    HostReport,
    Outcome,
    OutputLine,
    ResourceFinished,
    ResourceStarted,
    State,
    Status,
    Transport,
)
from provision.core.resource import Resource, compare, describe, waves
from provision.core.shell import Script

_FACTS_KEY = "f"
_FACTS_TIMEOUT_S = 30.0


def converge(
    transport: Transport,
    resources: Sequence[Resource],
    emit: Emit,
    *,
    clock: Callable[[], float],
    check: bool = False,
) -> HostReport:
    """Bring one host to the recipe and report what was verified. With `check`, say what would change and send no write.

    Raises `RecipeError` for a recipe that contradicts itself; everything that happens on the host
    or the wire is in the report.
    """
    run = _Run(transport, tuple(resources), emit, clock, check)
    plan = waves(resources)
    started = clock()
    if run.look():
        for index, wave in enumerate(plan):
            run.wave(wave, [later for following in plan[index + 1 :] for later in following])
    return run.report(clock() - started)


@dataclass
class _Planned:
    """A resource about to be acted on, with what was desired when that was decided."""

    resource: Resource
    desired: State | None
    diff: tuple[Change, ...]
    body: Script
    seconds: float = 0.0
    ended: SectionResult | None = None


@dataclass
class _Run:
    transport: Transport
    resources: tuple[Resource, ...]
    emit: Emit
    clock: Callable[[], float]
    check: bool
    facts: Facts = field(default_factory=Facts)
    states: dict[str, State | None] = field(default_factory=dict)
    broken: dict[str, ProvisionError] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    probe_seconds: dict[str, float] = field(default_factory=dict)
    round_trips: int = 0
    error: ProvisionError | None = None

    def __post_init__(self) -> None:
        self.index = {resource.name: str(number) for number, resource in enumerate(self.resources)}

    # --- exchange 1 ---

    def look(self) -> bool:
        """Read facts and every probe. False when the facts could not be had."""
        reply = self._exchange(
            [
                self._facts_section(),
                *(self._probe_section(resource) for resource in self.resources),
            ],
            Listener(),
        )
        answer = reply.results.get(_FACTS_KEY)
        if answer is not None and answer.status != 0 and self.error is None:
            self.error = section_error(
                self.transport.host.name,
                "reading the facts of the host",
                replace(answer, output=reply.stderr),
                _FACTS_TIMEOUT_S,
            )
        return answer is not None and answer.status == 0

    def _exchange(self, sections: list[Section], listener: Listener) -> ExchangeResult:
        self.round_trips += 1
        reply = exchange(self.transport, sections, clock=self.clock, listener=listener)
        self.error = self.error or reply.error
        if (facts := reply.results.get(_FACTS_KEY)) is not None:
            self.facts = read_facts(facts.output)
        for resource in self.resources:
            if (answer := reply.results.get(f"p{self.index[resource.name]}")) is not None:
                self._read(resource, answer, reply.stderr)
        return reply

    def _read(self, resource: Resource, answer: SectionResult, stderr: str) -> None:
        self.broken.pop(resource.name, None)
        self.states.pop(resource.name, None)
        self.probe_seconds[resource.name] = answer.seconds
        where = self._where(resource)
        if answer.status != 0:
            output = answer.output + stderr
            self.broken[resource.name] = section_error(
                where, "the probe", replace(answer, output=output), resource.probe_timeout_s
            )
            return
        try:
            self.states[resource.name] = resource.read(answer.output)
        except ProvisionError as error:
            self.broken[resource.name] = error
        except Exception as error:  # noqa: BLE001 - a recipe may be its user's own code
            why = f"{type(error).__name__}: {error}\n{tail(answer.output)}"
            self.broken[resource.name] = ProbeUnreadable(
                "the probe printed what cannot be read", where=where, why=why
            )

    def _facts_section(self) -> Section:
        return Section(_FACTS_KEY, FACTS, _FACTS_TIMEOUT_S)

    def _probe_section(self, resource: Resource) -> Section:
        return Section(f"p{self.index[resource.name]}", resource.probe(), resource.probe_timeout_s)

    # --- one wave ---

    def wave(self, wave: Iterable[Resource], later: Sequence[Resource]) -> None:
        """Decide every resource of the wave; act on those that differ in one exchange."""
        planned = []
        for resource in wave:
            decision = self._decide(resource)
            if isinstance(decision, Outcome):
                self._finish(decision)
            else:
                planned.append(decision)
        if planned:
            self._act(planned, later)

    def _decide(self, resource: Resource) -> Outcome | _Planned:
        name = resource.name
        if any(
            self._status(dependency) in {Status.FAILED, Status.SKIPPED}
            for dependency in resource.dependencies
        ):
            return Outcome(name, Status.SKIPPED, note="what it depends on failed")
        if name in self.broken:
            return Outcome(name, Status.FAILED, error=self.broken[name])
        if name not in self.states:
            return Outcome(name, Status.UNKNOWN, note="not read")
        try:
            return self._compared(resource)
        except ProvisionError as error:
            return Outcome(name, Status.FAILED, error=error)
        except Exception as error:  # noqa: BLE001 - a recipe may be its user's own code
            why = f"{type(error).__name__}: {error}"
            mistake = ResourceError(
                "the resource itself has a mistake", where=self._where(resource), why=why
            )
            mistake.__cause__ = error
            return Outcome(name, Status.FAILED, error=mistake)

    def _compared(self, resource: Resource) -> Outcome | _Planned:
        name = resource.name
        desired = resource.desired(self.facts)
        diff = compare(self.states[name], desired)
        causes = [cause for cause in resource.on_change_of if self._status(cause) is Status.CHANGED]
        body = resource.ensure(self.facts) if diff or causes else None
        if self.check and (uncertain := self._uncertain(resource)):
            return Outcome(
                name, Status.UNKNOWN, note=f"depends on {', '.join(uncertain)}, which would change"
            )
        if not diff and body is None:
            return Outcome(name, Status.OK, note=resource.remark(self.states[name]))
        if self._halted() and not self.check:
            return Outcome(
                name, Status.UNKNOWN if self.error else Status.SKIPPED, diff, note="not started"
            )
        if body is None:
            return Outcome(name, Status.FAILED, diff, error=self._not_converged(resource, diff, ""))
        if self.check:
            return Outcome(
                name,
                Status.CHANGED,
                diff,
                note="" if diff else f"because {', '.join(causes)} would change",
            )
        return _Planned(resource, desired, diff, body.with_bindings({"because": " ".join(causes)}))

    def _uncertain(self, resource: Resource) -> list[str]:
        """What this depends on and nobody knows the coming state of; that a cause would change is certain enough."""
        uncertain = [
            need
            for need in resource.needs
            if self._status(need) in {Status.CHANGED, Status.UNKNOWN}
        ]
        return uncertain + [
            cause for cause in resource.on_change_of if self._status(cause) is Status.UNKNOWN
        ]

    def _act(self, planned: list[_Planned], later: Sequence[Resource]) -> None:
        names = {plan.resource.name for plan in planned}
        dependents = self._dependents(names, later)
        for name in names.union(resource.name for resource in dependents):
            self.states.pop(name, None)
            self.broken.pop(name, None)
        sections = []
        for plan in planned:
            key = f"e{self.index[plan.resource.name]}"
            sections.append(
                Section(key, plan.body, plan.resource.timeout_s, merge=True, gate=True, strict=True)
            )
            sections.append(self._probe_section(plan.resource))
        sections += [self._facts_section(), *map(self._probe_section, dependents)]
        reply = self._exchange(sections, self._listener(planned))
        for plan in planned:
            if plan.resource.name not in self.outcomes:
                self._settle(plan, reply)

    def _listener(self, planned: list[_Planned]) -> Listener:
        host = self.transport.host.name
        acting = {f"e{self.index[plan.resource.name]}": plan for plan in planned}
        probing = {f"p{self.index[plan.resource.name]}": plan for plan in planned}

        def began(key: str) -> None:
            if key in acting:
                self.emit(ResourceStarted(host, acting[key].resource.name))

        def line(key: str, text: str) -> None:
            if key in acting:
                self.emit(OutputLine(host, acting[key].resource.name, text))

        def ended(key: str, answer: SectionResult) -> None:
            if (plan := acting.get(key) or probing.get(key)) is not None:
                plan.seconds += answer.seconds
            if key in acting:
                acting[key].ended = answer
            elif plan is not None and plan.ended is not None and answer.status == 0:
                self._read(
                    plan.resource, answer, ""
                )  # why a probe failed is known when the exchange has ended
                self._verify(plan, plan.ended)

        return Listener(began, line, ended)

    def _verify(self, plan: _Planned, answer: SectionResult) -> None:
        """The verdict on a resource whose `ensure` has ended, and whose second probe has unless that failed."""
        resource, name, diff = plan.resource, plan.resource.name, plan.diff
        error = None
        if answer.status != 0:
            error = section_error(self._where(resource), "making it so", answer, resource.timeout_s)
            self._explain(resource, error, answer.output)
        elif name in self.broken:
            error = self.broken[name]
        elif remaining := compare(self.states[name], plan.desired):
            diff = remaining
            error = self._not_converged(resource, remaining, answer.output)
        note = "" if error else resource.remark(self.states[name])
        self._finish(
            Outcome(
                name, Status.FAILED if error else Status.CHANGED, diff, plan.seconds, error, note
            )
        )

    def _settle(self, plan: _Planned, reply: ExchangeResult) -> None:
        """The verdict on a resource that was not probed again."""
        name = plan.resource.name
        began = f"e{self.index[name]}" in reply.started
        if plan.ended is not None and (plan.ended.status != 0 or name in self.broken):
            self._verify(plan, plan.ended)
        elif began:
            self._finish(
                Outcome(
                    name,
                    Status.UNKNOWN,
                    plan.diff,
                    plan.seconds,
                    note="the run was cut while this was under way",
                )
            )
        elif reply.error is not None:
            self._finish(Outcome(name, Status.UNKNOWN, plan.diff, note="not started"))
        else:
            self._finish(
                Outcome(name, Status.SKIPPED, plan.diff, note="an earlier resource failed")
            )

    # --- small things ---

    def _where(self, resource: Resource) -> str:
        return f"{self.transport.host.name}: {resource.name}"

    def _status(self, name: str) -> Status | None:
        outcome = self.outcomes.get(name)
        return outcome.status if outcome else None

    def _halted(self) -> bool:
        return self.error is not None or any(
            outcome.status is Status.FAILED for outcome in self.outcomes.values()
        )

    def _dependents(self, names: set[str], later: Sequence[Resource]) -> list[Resource]:
        found = set(names)
        result = []
        for resource in later:
            if found.intersection(resource.dependencies):
                found.add(resource.name)
                result.append(resource)
        return result

    def _not_converged(
        self, resource: Resource, remaining: tuple[Change, ...], output: str
    ) -> ProvisionError:
        why = "\n".join(line for change in remaining for line in describe(change))
        error = NotConverged("did not converge", where=self._where(resource), why=why)
        self._explain(resource, error, output)
        return error

    def _explain(self, resource: Resource, error: ProvisionError, output: str) -> None:
        diagnosis = resource.diagnose(output, self.states.get(resource.name))
        if diagnosis is not None:
            error.what = diagnosis.cause
            error.fix = diagnosis.fix

    def _finish(self, outcome: Outcome) -> None:
        """Record and tell; what was not acted on took as long as its probe."""
        outcome = replace(
            outcome, seconds=outcome.seconds or self.probe_seconds.get(outcome.resource, 0.0)
        )
        self.outcomes[outcome.resource] = outcome
        self.emit(ResourceFinished(self.transport.host.name, outcome))

    def report(self, seconds: float) -> HostReport:
        """The end of the host: a resource nobody got to is unknown."""
        for resource in self.resources:
            if resource.name not in self.outcomes:
                self._finish(Outcome(resource.name, Status.UNKNOWN, note="not read"))
        outcomes = tuple(self.outcomes[resource.name] for resource in self.resources)
        return HostReport(
            self.transport.host.name, outcomes, self.round_trips, seconds, self.error, self.facts
        )
