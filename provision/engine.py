"""The only loop of the program: probe everything, compare, act wave by wave, and probe again what was acted on.

    exchange 1: facts and every probe -> compare -> (check? report and stop)
    one exchange per wave that differs: ensure what differs, probe it again, and everything later that depends on it

So no change costs one exchange, and a change one more for each wave that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from provision.errors import NotConverged, ProbeUnreadable, ProvisionError
from provision.exchange import Answer, Listener, Reply, exchange, failure, tail
from provision.facts import FACTS, read_facts
from provision.model import (
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
from provision.resource import Resource, compare, describe, waves
from provision.shell import Section

_FACTS_KEY = "f"
_FACTS_TIMEOUT_S = 30.0


def converge(
    transport: Transport, resources: Sequence[Resource], emit: Emit, *, clock: Callable[[], float], check: bool = False
) -> HostReport:
    """Bring one host to the recipe and report what was verified. With `check`, say what would change and send no write.

    Raises `RecipeError` for a recipe that contradicts itself; everything that happens on the host or the wire is in
    the report.
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
    causes: tuple[str, ...] = ()
    seconds: float = 0.0
    ended: Answer | None = None


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
    round_trips: int = 0
    error: ProvisionError | None = None

    def __post_init__(self) -> None:
        self.index = {resource.name: str(number) for number, resource in enumerate(self.resources)}
        self.by_index = {number: name for name, number in self.index.items()}
        self.by_name = {resource.name: resource for resource in self.resources}

    # --- exchange 1 ---

    def look(self) -> bool:
        """Read facts and every probe. False when the facts could not be had."""
        reply = self._exchange([self._facts_section(), *(self._probe_section(resource) for resource in self.resources)], Listener())
        answer = reply.answers.get(_FACTS_KEY)
        if answer is not None and answer.status != 0 and self.error is None:
            self.error = failure(self.transport.host.name, "reading the facts of the host", replace(answer, output=reply.stderr), _FACTS_TIMEOUT_S)
        return answer is not None and answer.status == 0

    def _exchange(self, sections: list[Section], listener: Listener) -> Reply:
        self.round_trips += 1
        reply = exchange(self.transport, sections, clock=self.clock, listener=listener)
        self.error = self.error or reply.error
        if (facts := reply.answers.get(_FACTS_KEY)) is not None:
            self.facts = read_facts(facts.output)
        for resource in self.resources:
            if (answer := reply.answers.get(f"p{self.index[resource.name]}")) is not None:
                self._read(resource, answer, reply.stderr)
        return reply

    def _read(self, resource: Resource, answer: Answer, stderr: str) -> None:
        self.broken.pop(resource.name, None)
        self.states.pop(resource.name, None)
        where = f"{self.transport.host.name}: {resource.name}"
        if answer.status != 0:
            output = answer.output + stderr
            self.broken[resource.name] = failure(where, "the probe", replace(answer, output=output), resource.probe_timeout_s)
            return
        try:
            self.states[resource.name] = resource.read(answer.output)
        except ProvisionError as error:
            self.broken[resource.name] = error
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            why = f"{type(error).__name__}: {error}\n{tail(answer.output)}"
            self.broken[resource.name] = ProbeUnreadable("the probe printed what cannot be read", where=where, why=why)

    def _facts_section(self) -> Section:
        return Section(_FACTS_KEY, FACTS, _FACTS_TIMEOUT_S)

    def _probe_section(self, resource: Resource) -> Section:
        return Section(f"p{self.index[resource.name]}", resource.probe(), resource.probe_timeout_s)

    # --- one wave ---

    def wave(self, wave: Iterable[Resource], later: Sequence[Resource]) -> None:
        """Decide every resource of the wave; act on those that differ in one exchange."""
        planned = [plan for resource in wave if (plan := self._decide(resource)) is not None]
        if planned:
            self._act(planned, later)

    def _decide(self, resource: Resource) -> _Planned | None:
        name = resource.name
        if any(self._status(dependency) in {Status.FAILED, Status.SKIPPED} for dependency in resource.dependencies):
            return self._finish(name, Status.SKIPPED, note="what it depends on failed")
        if name in self.broken:
            return self._finish(name, Status.FAILED, error=self.broken[name])
        if name not in self.states:
            return self._finish(name, Status.UNKNOWN, note="not read")
        try:
            desired = resource.desired(self.facts)
            diff = compare(self.states[name], desired)
            causes = [cause for cause in resource.on_change_of if self._status(cause) is Status.CHANGED]
            if self.check:
                return self._foretell(resource, diff, causes)
            if not diff and not causes:
                return self._finish(name, Status.OK)
            if self._halted():
                return self._finish(name, Status.UNKNOWN if self.error else Status.SKIPPED, diff=diff, note="not started")
            if resource.ensure(self.facts) is None:
                return self._finish(name, Status.FAILED, diff=diff, error=self._not_converged(resource, diff, ""))
        except ProvisionError as error:
            return self._finish(name, Status.FAILED, error=error)
        return _Planned(resource, desired, diff, tuple(causes))

    def _foretell(self, resource: Resource, diff: tuple[Change, ...], causes: list[str]) -> None:
        uncertain = [need for need in resource.needs if self._status(need) in {Status.CHANGED, Status.UNKNOWN}]
        uncertain += [cause for cause in resource.on_change_of if self._status(cause) is Status.UNKNOWN]
        if uncertain:
            return self._finish(resource.name, Status.UNKNOWN, note=f"depends on {', '.join(uncertain)}, which would change")
        if not diff and not causes:
            return self._finish(resource.name, Status.OK)
        if resource.ensure(self.facts) is None:
            return self._finish(resource.name, Status.FAILED, diff=diff, error=self._not_converged(resource, diff, ""))
        note = f"because {', '.join(causes)} would change" if causes and not diff else ""
        return self._finish(resource.name, Status.CHANGED, diff=diff, note=note)

    def _act(self, planned: list[_Planned], later: Sequence[Resource]) -> None:
        by_key = {f"{kind}{self.index[plan.resource.name]}": plan for plan in planned for kind in "ep"}
        sections: list[Section] = []
        for plan in planned:
            if (body := plan.resource.ensure(self.facts)) is None:  # decided before; the type does not know
                continue
            key = f"e{self.index[plan.resource.name]}"
            body = body.with_binding("because", " ".join(plan.causes))
            sections.append(Section(key, body, plan.resource.timeout_s, merge=True, gate=True, strict=True))
            sections.append(self._probe_section(plan.resource))
        dependents = self._dependents({plan.resource.name for plan in planned}, later)
        sections += [self._facts_section(), *(self._probe_section(resource) for resource in dependents)]

        def began(key: str) -> None:
            if key.startswith("e"):
                self.emit(ResourceStarted(self.transport.host.name, by_key[key].resource.name))

        def line(key: str, text: str) -> None:
            if key.startswith("e"):
                self.emit(OutputLine(self.transport.host.name, by_key[key].resource.name, text))

        def ended(key: str, answer: Answer) -> None:
            if (plan := by_key.get(key)) is not None:
                plan.seconds += answer.seconds
                if key.startswith("e"):
                    plan.ended = answer
                elif plan.ended is not None:
                    self._read(plan.resource, answer, "")
                    self._verify(plan, plan.ended)

        stale = {plan.resource.name for plan in planned} | {resource.name for resource in dependents}
        for name in stale:
            self.states.pop(name, None)
        reply = self._exchange(sections, Listener(began, line, ended))
        for plan in planned:
            self._settle(plan, reply)

    def _verify(self, plan: _Planned, answer: Answer) -> None:
        """The verdict on a resource whose `ensure` and second probe have both ended."""
        resource, name, host = plan.resource, plan.resource.name, self.transport.host.name
        state = self.states.get(name)
        if answer.status != 0:
            error = failure(f"{host}: {name}", "making it so", answer, resource.timeout_s)
            self._explain(resource, error, answer.output)
            self._finish(name, Status.FAILED, diff=plan.diff, seconds=plan.seconds, error=error)
        elif name in self.broken:
            self._finish(name, Status.FAILED, diff=plan.diff, seconds=plan.seconds, error=self.broken[name])
        elif remaining := compare(state, plan.desired):
            error = self._not_converged(resource, remaining, answer.output)
            self._finish(name, Status.FAILED, diff=remaining, seconds=plan.seconds, error=error)
        else:
            self._finish(name, Status.CHANGED, diff=plan.diff, seconds=plan.seconds)

    def _settle(self, plan: _Planned, reply: Reply) -> None:
        """The verdict on a resource that the exchange did not reach or did not finish."""
        name = plan.resource.name
        if name in self.outcomes:
            return
        if reply.error is None and f"e{self.index[name]}" not in reply.begun:
            self._finish(name, Status.SKIPPED, diff=plan.diff, note="an earlier resource failed")
        else:
            self._finish(name, Status.UNKNOWN, diff=plan.diff, seconds=plan.seconds, note="the run was cut while this was under way")

    # --- small things ---

    def _status(self, name: str) -> Status | None:
        outcome = self.outcomes.get(name)
        return outcome.status if outcome else None

    def _halted(self) -> bool:
        return self.error is not None or any(outcome.status is Status.FAILED for outcome in self.outcomes.values())

    def _dependents(self, names: set[str], later: Sequence[Resource]) -> list[Resource]:
        found = set(names)
        result = []
        for resource in later:
            if found.intersection(resource.dependencies):
                found.add(resource.name)
                result.append(resource)
        return result

    def _not_converged(self, resource: Resource, remaining: tuple[Change, ...], output: str) -> ProvisionError:
        why = "\n".join(line for change in remaining for line in describe(change))
        error = NotConverged("did not converge", where=f"{self.transport.host.name}: {resource.name}", why=why)
        self._explain(resource, error, output)
        return error

    def _explain(self, resource: Resource, error: ProvisionError, output: str) -> None:
        diagnosis = resource.diagnose(output, self.states.get(resource.name))
        if diagnosis is not None:
            error.what = diagnosis.cause
            error.fix = diagnosis.fix

    def _finish(
        self,
        name: str,
        status: Status,
        *,
        diff: tuple[Change, ...] = (),
        seconds: float = 0.0,
        error: ProvisionError | None = None,
        note: str = "",
    ) -> None:
        outcome = Outcome(name, status, diff, seconds, error, note)
        self.outcomes[name] = outcome
        self.emit(ResourceFinished(self.transport.host.name, outcome))

    def report(self, seconds: float) -> HostReport:
        """The end of the host: a resource nobody got to is unknown."""
        for resource in self.resources:
            if resource.name not in self.outcomes:
                self._finish(resource.name, Status.UNKNOWN, note="not read")
        outcomes = tuple(self.outcomes[resource.name] for resource in self.resources)
        return HostReport(self.transport.host.name, outcomes, self.round_trips, seconds, self.error, self.facts)
