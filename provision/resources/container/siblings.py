"""The worker containers beside the first one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Script, fields, script
from provision.resources.container.container import CREATE, PRINT_STATE, Container, read_record

HERE = Path(__file__).parent
SIBLINGS = "resources/container/siblings.sh"
"""The file of the shell function that lists the siblings of a container."""


@dataclass(frozen=True, kw_only=True)
class Siblings(Resource):
    """Worker containers 2 to `count`, called NAME-2, NAME-3, …, each like `first`.

    There are none where `first` joins no other container. `count` None means one worker for each
    CPU, as on Dataflow.
    """

    first: Container
    count: int | None = None
    timeout_s: float = 600.0

    def _total(self, facts: Facts) -> int:
        if not self.first.joins:
            return 1
        return max(1, facts.cpus if self.count is None else self.count)

    def probe(self) -> Script:
        """Print the record of every container with the label of a sibling."""
        body = script(HERE / "probe_siblings.sh", uses=[SIBLINGS, *PRINT_STATE])
        return body.with_bindings(self.first.probe_bindings)

    def read(self, text: str) -> State | None:
        """`{"count", "running"}` and what `Container` reads; None without siblings.

        Where the siblings differ, `spec` is `mixed`; the other values are `stale` when one of the
        siblings is.
        """
        lines = [line for line in text.splitlines() if "|" in line]
        if not lines:
            return None
        records = [read_record(line, fields(text)) for line in lines]
        specs = {str(record["spec"]) for record in records}
        ages = {
            key: "current" if all(record[key] == "current" for record in records) else "stale"
            for key in ("image", "driver", "joined")
        }
        return {
            "count": len(records),
            "running": sum(bool(record["running"]) for record in records),
            "spec": specs.pop() if len(specs) == 1 else "mixed",
            **ages,
        }

    def desired(self, facts: Facts) -> State | None:
        """All siblings running and as the first container; None where there should be none."""
        count = self._total(facts) - 1
        if not count:
            return None
        return {"count": count, **self.first.desired(facts), "running": count}

    def ensure(self, facts: Facts) -> Script | None:
        """Remove the siblings beyond `count`, then start or recreate the others."""
        options = self.first.run_options(facts)
        body = script(
            HERE / "ensure_siblings.sh",
            uses=[SIBLINGS, *CREATE],
            argv=options,
            count=self._total(facts),
        )
        return body.with_bindings(self.first.ensure_bindings(facts))

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:
        """As for the first container."""
        return self.first.diagnose(output, actual)
