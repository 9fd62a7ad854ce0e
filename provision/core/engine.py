"""The only loop of the program: probe every resource, compare, change what differs, probe again.

Exchange 1 reads the facts and every probe. In check mode the run ends there. Otherwise each wave
that differs takes one more exchange, which changes what differs and probes it and everything that
depends on it. So a run that changes nothing takes one exchange.
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
    """Bring one host to the state that the recipe describes and report what was verified.

    With `check` the report lists what would change, and nothing is written. Raises `RecipeError`
    for a recipe that contradicts itself. What fails on the host or on the wire is in the report.
    """
    recipe_waves = waves(resources)
    run = _HostRun(transport, tuple(resources), emit, clock, check)
    started_at = clock()
    if run.probe_all():
        for index, wave in enumerate(recipe_waves):
            later = [resource for rest in recipe_waves[index + 1 :] for resource in rest]
            run.converge_wave(wave, later)
    return run.report(clock() - started_at)


@dataclass
class _Action:
    """A resource that is about to be changed, with the state desired when that was decided."""

    resource: Resource
    desired: State | None
    diff: tuple[Change, ...]
    body: Script
    seconds: float = 0.0
    result: SectionResult | None = None
    """How `ensure` ended; None until then."""


@dataclass
class _HostRun:
    """One run on one host. The dictionaries hold what is known of each resource, by its name."""

    transport: Transport
    resources: tuple[Resource, ...]
    emit: Emit
    clock: Callable[[], float]
    check: bool
    facts: Facts = field(default_factory=Facts)
    states: dict[str, State | None] = field(default_factory=dict)
    probe_errors: dict[str, ProvisionError] = field(default_factory=dict)
    probe_seconds: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    round_trips: int = 0
    error: ProvisionError | None = None

    def __post_init__(self) -> None:
        self.index = {resource.name: str(number) for number, resource in enumerate(self.resources)}

    # --- exchanges ---

    def probe_all(self) -> bool:
        """Read the facts and every probe. Returns False when the facts could not be read."""
        probes = [self._probe_section(resource) for resource in self.resources]
        reply = self._exchange([self._facts_section(), *probes], Listener())
        facts = reply.results.get(_FACTS_KEY)
        if facts is not None and facts.status != 0 and self.error is None:
            self.error = section_error(
                self.transport.host.name,
                "reading the facts of the host",
                replace(facts, output=reply.stderr),
                _FACTS_TIMEOUT_S,
            )
        return facts is not None and facts.status == 0

    def _exchange(self, sections: list[Section], listener: Listener) -> ExchangeResult:
        self.round_trips += 1
        reply = exchange(self.transport, sections, clock=self.clock, listener=listener)
        self.error = self.error or reply.error
        if (facts := reply.results.get(_FACTS_KEY)) is not None:
            self.facts = read_facts(facts.output)
        for resource in self.resources:
            if (probe := reply.results.get(self._probe_key(resource))) is not None:
                self._read_probe(resource, probe, reply.stderr)
        return reply

    def _read_probe(self, resource: Resource, probe: SectionResult, stderr: str) -> None:
        """Record the state that a probe printed, or why it cannot be read."""
        self.probe_errors.pop(resource.name, None)
        self.states.pop(resource.name, None)
        self.probe_seconds[resource.name] = probe.seconds
        where = self._where(resource)
        if probe.status != 0:
            probe = replace(probe, output=probe.output + stderr)
            error = section_error(where, "the probe", probe, resource.probe_timeout_s)
            self.probe_errors[resource.name] = error
            return
        try:
            self.states[resource.name] = resource.read(probe.output)
        except ProvisionError as error:
            self.probe_errors[resource.name] = error
        except Exception as error:  # noqa: BLE001 - a recipe may be its user's own code
            why = f"{type(error).__name__}: {error}\n{tail(probe.output)}"
            self.probe_errors[resource.name] = ProbeUnreadable(
                "the probe printed what cannot be read", where=where, why=why
            )

    def _facts_section(self) -> Section:
        return Section(_FACTS_KEY, FACTS, _FACTS_TIMEOUT_S)

    def _probe_section(self, resource: Resource) -> Section:
        return Section(self._probe_key(resource), resource.probe(), resource.probe_timeout_s)

    def _probe_key(self, resource: Resource) -> str:
        return f"p{self.index[resource.name]}"

    def _ensure_key(self, resource: Resource) -> str:
        return f"e{self.index[resource.name]}"

    # --- the decision on one resource ---

    def converge_wave(self, wave: Iterable[Resource], later: Sequence[Resource]) -> None:
        """Decide on every resource of the wave and change those that differ in one exchange.

        `later` are the resources of the following waves.
        """
        actions = []
        for resource in wave:
            decision = self._decide(resource)
            if isinstance(decision, Outcome):
                self._record(decision)
            else:
                actions.append(decision)
        if actions:
            self._act(actions, later)

    def _decide(self, resource: Resource) -> Outcome | _Action:
        name = resource.name
        without = {Status.FAILED, Status.SKIPPED}
        if any(self._status(dependency) in without for dependency in resource.dependencies):
            return Outcome(name, Status.SKIPPED, note="what it depends on failed")
        if name in self.probe_errors:
            return Outcome(name, Status.FAILED, error=self.probe_errors[name])
        if name not in self.states:
            return Outcome(name, Status.UNKNOWN, note="not read")
        try:
            return self._compare(resource)
        except ProvisionError as error:
            return Outcome(name, Status.FAILED, error=error)
        except Exception as error:  # noqa: BLE001 - a recipe may be its user's own code
            why = f"{type(error).__name__}: {error}"
            mistake = ResourceError(
                "the resource itself has a mistake", where=self._where(resource), why=why
            )
            mistake.__cause__ = error
            return Outcome(name, Status.FAILED, error=mistake)

    def _compare(self, resource: Resource) -> Outcome | _Action:
        name = resource.name
        desired = resource.desired(self.facts)
        diff = compare(self.states[name], desired)
        causes = [cause for cause in resource.on_change_of if self._status(cause) is Status.CHANGED]
        body = resource.ensure(self.facts) if diff or causes else None
        if self.check and (uncertain := self._uncertain_dependencies(resource)):
            note = f"depends on {', '.join(uncertain)}, which would change"
            return Outcome(name, Status.UNKNOWN, note=note)
        if not diff and body is None:
            return Outcome(name, Status.OK, note=resource.remark(self.states[name]))
        if self._is_halted() and not self.check:
            status = Status.UNKNOWN if self.error else Status.SKIPPED
            return Outcome(name, status, diff, note="not started")
        if body is None:
            return Outcome(name, Status.FAILED, diff, error=self._not_converged(resource, diff, ""))
        if self.check:
            note = "" if diff else f"because {', '.join(causes)} would change"
            return Outcome(name, Status.CHANGED, diff, note=note)
        return _Action(resource, desired, diff, body.with_bindings({"because": " ".join(causes)}))

    def _uncertain_dependencies(self, resource: Resource) -> list[str]:
        """Names of the dependencies whose state after a run cannot be predicted.

        A cause (`on_change_of`) that would change is certain enough.
        """
        changing = {Status.CHANGED, Status.UNKNOWN}
        needs = [need for need in resource.needs if self._status(need) in changing]
        causes = resource.on_change_of
        return needs + [cause for cause in causes if self._status(cause) is Status.UNKNOWN]

    # --- the changes of one wave ---

    def _act(self, actions: list[_Action], later: Sequence[Resource]) -> None:
        names = {action.resource.name for action in actions}
        dependents = self._dependents(names, later)
        for name in names.union(resource.name for resource in dependents):
            self.states.pop(name, None)
            self.probe_errors.pop(name, None)
        sections = []
        for action in actions:
            resource, key = action.resource, self._ensure_key(action.resource)
            sections += [
                Section(key, action.body, resource.timeout_s, merge=True, gate=True, strict=True),
                self._probe_section(resource),
            ]
        sections += [self._facts_section(), *map(self._probe_section, dependents)]
        reply = self._exchange(sections, self._listener(actions))
        for action in actions:
            if action.resource.name not in self.outcomes:
                self._conclude(action, reply)

    def _listener(self, actions: list[_Action]) -> Listener:
        """Reports the progress of each action and verifies it as soon as its probe has ended."""
        host = self.transport.host.name
        ensuring = {self._ensure_key(action.resource): action for action in actions}
        probing = {self._probe_key(action.resource): action for action in actions}

        def on_begin(key: str) -> None:
            if key in ensuring:
                self.emit(ResourceStarted(host, ensuring[key].resource.name))

        def on_line(key: str, text: str) -> None:
            if key in ensuring:
                self.emit(OutputLine(host, ensuring[key].resource.name, text))

        def on_end(key: str, result: SectionResult) -> None:
            if (action := ensuring.get(key) or probing.get(key)) is not None:
                action.seconds += result.seconds
            if key in ensuring:
                ensuring[key].result = result
            elif action is not None and action.result is not None and result.status == 0:
                # A failed probe waits for standard error, which is complete after the exchange.
                self._read_probe(action.resource, result, "")
                self._verify(action, action.result)

        return Listener(on_begin, on_line, on_end)

    def _verify(self, action: _Action, result: SectionResult) -> None:
        """Record the outcome of an action whose `ensure` has ended.

        Unless `ensure` failed, the resource has been probed again.
        """
        resource, name, diff = action.resource, action.resource.name, action.diff
        error = None
        if result.status != 0:
            error = section_error(self._where(resource), "the change", result, resource.timeout_s)
            self._diagnose(resource, error, result.output)
        elif name in self.probe_errors:
            error = self.probe_errors[name]
        elif remaining := compare(self.states[name], action.desired):
            diff = remaining
            error = self._not_converged(resource, remaining, result.output)
        status = Status.FAILED if error else Status.CHANGED
        note = "" if error else resource.remark(self.states[name])
        self._record(Outcome(name, status, diff, action.seconds, error, note))

    def _conclude(self, action: _Action, reply: ExchangeResult) -> None:
        """Record the outcome of an action that could not be verified while the exchange ran."""
        name, result = action.resource.name, action.result
        if result is not None and (result.status != 0 or name in self.probe_errors):
            self._verify(action, result)
            return
        status, note = Status.SKIPPED, "an earlier resource failed"
        if self._ensure_key(action.resource) in reply.started:
            status, note = Status.UNKNOWN, "the run was interrupted during this change"
        elif reply.error is not None:
            status, note = Status.UNKNOWN, "not started"
        self._record(Outcome(name, status, action.diff, action.seconds, note=note))

    # --- what the steps above share ---

    def _where(self, resource: Resource) -> str:
        return f"{self.transport.host.name}: {resource.name}"

    def _status(self, name: str) -> Status | None:
        outcome = self.outcomes.get(name)
        return outcome.status if outcome else None

    def _is_halted(self) -> bool:
        failed = (outcome.status is Status.FAILED for outcome in self.outcomes.values())
        return self.error is not None or any(failed)

    def _dependents(self, names: set[str], later: Sequence[Resource]) -> list[Resource]:
        """The later resources that depend on one of `names`, directly or not."""
        affected = set(names)
        result = []
        for resource in later:
            if affected.intersection(resource.dependencies):
                affected.add(resource.name)
                result.append(resource)
        return result

    def _not_converged(
        self, resource: Resource, remaining: tuple[Change, ...], output: str
    ) -> ProvisionError:
        why = "\n".join(line for change in remaining for line in describe(change))
        error = NotConverged("did not converge", where=self._where(resource), why=why)
        self._diagnose(resource, error, output)
        return error

    def _diagnose(self, resource: Resource, error: ProvisionError, output: str) -> None:
        """Put the resource's own diagnosis into the error, where it has one."""
        diagnosis = resource.diagnose(output, self.states.get(resource.name))
        if diagnosis is not None:
            error.what = diagnosis.cause
            error.fix = diagnosis.fix

    def _record(self, outcome: Outcome) -> None:
        """Record and report an outcome. The time of an unchanged resource is that of its probe."""
        seconds = outcome.seconds or self.probe_seconds.get(outcome.resource, 0.0)
        outcome = replace(outcome, seconds=seconds)
        self.outcomes[outcome.resource] = outcome
        self.emit(ResourceFinished(self.transport.host.name, outcome))

    def report(self, seconds: float) -> HostReport:
        """The report of the host. A resource without outcome is unknown."""
        for resource in self.resources:
            if resource.name not in self.outcomes:
                self._record(Outcome(resource.name, Status.UNKNOWN, note="not read"))
        outcomes = tuple(self.outcomes[resource.name] for resource in self.resources)
        return HostReport(
            self.transport.host.name, outcomes, self.round_trips, seconds, self.error, self.facts
        )
