"""The engine on this machine: real scripts and shells, and connections that are lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from provision.core import job
from provision.core.engine import converge
from provision.core.errors import CommandTimeout, Unreachable
from provision.core.model import Event, Facts, Host, HostReport, OutputLine, Sink, State, Status
from provision.core.resource import Resource
from provision.core.shell import RemotePath, Script, script
from provision.hosts.local import LocalTransport
from provision.resources import BootRunner, Directory, File, Unit
from provision.resources.boot import fragment
from tests.shells.shells import Scratch
from tests.shells.trees import tree

pytestmark = pytest.mark.slow

OK, CHANGED, FAILED, SKIPPED, UNKNOWN = (
    Status.OK,
    Status.CHANGED,
    Status.FAILED,
    Status.SKIPPED,
    Status.UNKNOWN,
)


def recipe() -> list[Resource]:
    folder = Directory(name="folder", path="/var/lib/it's a folder", at_boot=True)
    unit = Unit(
        name="unit",
        unit="app.service",
        content="[Service]\nType=oneshot\n[Install]\nWantedBy=multi-user.target\n",
    )
    return [
        folder,
        File(
            name="text",
            path="/var/lib/it's a folder/$(text)",
            content="a\n'b'\n",
            needs=("folder",),
        ),
        File(name="large", path="/var/lib/large", content="0123456789\n" * 12_000),
        unit,
        File(name="handler", path="/var/lib/handler", content="x", on_change_of=("text",)),
        BootRunner(),
        fragment("boot", "10-a.sh", [folder, unit]),
    ]


@pytest.fixture
def on_scratch(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    monkeypatch.setattr(job, "PATIENCE_S", 1)
    (scratch.root / "proc/meminfo").write_text("MemTotal: 4096 kB\n")
    scratch.enter(monkeypatch)
    return scratch


def run(
    host: Host,
    resources: list[Resource],
    *,
    check: bool = False,
    emit: Callable[[Event], None] = lambda event: None,
) -> HostReport:
    return converge(LocalTransport(host), resources, emit, clock=time.monotonic, check=check)


def statuses(report: HostReport) -> dict[str, Status]:
    return {outcome.resource: outcome.status for outcome in report.outcomes}


def everything(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("become", ["none", "sudo"])
def test_recipe_converges_and_second_run_changes_nothing(on_scratch: Scratch, become: str) -> None:
    host = on_scratch.shell.host(become)
    before = everything(on_scratch.root)
    predicted = run(host, recipe(), check=True)
    assert everything(on_scratch.root) == before
    assert statuses(predicted) == {
        "folder": CHANGED,
        "text": UNKNOWN,
        "large": CHANGED,
        "unit": CHANGED,
        "handler": UNKNOWN,
        "boot-script": CHANGED,
        "boot": CHANGED,
    }  # fmt: skip
    first = run(host, recipe())
    assert [outcome.error for outcome in first.outcomes] == [None] * 7
    assert set(statuses(first).values()) == {CHANGED}
    assert first.round_trips == 1 + 3
    after = everything(on_scratch.root)
    assert after["var/lib/it's a folder/$(text)"] == b"a\n'b'\n"
    assert len(after["var/lib/large"] or b"") == 132_000
    assert not [name for name in after if ".provision." in name]
    second = run(host, recipe())
    assert set(statuses(second).values()) == {OK}
    assert second.round_trips == 1
    assert everything(on_scratch.root) == after


@dataclass(frozen=True, kw_only=True)
class Step(Resource):
    """Writes a file after running another command."""

    before: str = ":"

    @property
    def path(self) -> RemotePath:
        return RemotePath("/var/lib") / self.name

    def probe(self) -> Script:
        return script('test ! -e "$path" || echo here', path=self.path)

    def read(self, text: str) -> State | None:
        return {"here": True} if text else None

    def desired(self, facts: Facts) -> State:
        return {"here": True}

    def ensure(self, facts: Facts) -> Script | None:
        return script('eval "$before"\necho here >"$path"', before=self.before, path=self.path)


def test_output_line_is_reported_while_the_command_runs(on_scratch: Scratch) -> None:
    """The step waits for a file that the test writes once it has seen the line."""
    seen = on_scratch.root / "seen"

    def emit(event: Event) -> None:
        if isinstance(event, OutputLine) and event.text == "downloading":
            seen.touch()

    waiting = Step(
        name="a",
        before='echo downloading; while test ! -e "$R/seen"; do sleep 0.05; done',
        timeout_s=20.0,
    )
    assert statuses(run(on_scratch.shell.host(), [waiting], emit=emit)) == {"a": CHANGED}


def test_failed_resource_skips_the_following_ones(on_scratch: Scratch) -> None:
    report = run(
        on_scratch.shell.host(),
        [Step(name="a"), Step(name="b", before="echo oops >&2; false"), Step(name="c")],
    )
    assert statuses(report) == {"a": CHANGED, "b": FAILED, "c": SKIPPED}
    assert "oops" in str(report.outcomes[1].error)
    assert not (on_scratch.root / "var/lib/c").exists()


def test_resource_that_exceeds_its_timeout_fails(on_scratch: Scratch) -> None:
    report = run(
        on_scratch.shell.host(),
        [Step(name="a", before="echo begun; sleep 300", timeout_s=1.0), Step(name="b")],
    )
    assert statuses(report) == {"a": FAILED, "b": SKIPPED}
    assert isinstance(report.outcomes[0].error, CommandTimeout)
    assert report.outcomes[0].error.why == "no end after 1 s\nbegun"


def test_unset_variable_fails_the_resource(on_scratch: Scratch) -> None:
    report = run(on_scratch.shell.host(), [Step(name="a", before='rm -rf "$nothing/"')])
    assert statuses(report) == {"a": FAILED}


def test_missing_program_fails_the_resource(on_scratch: Scratch) -> None:
    report = run(on_scratch.shell.host(), [Step(name="a", before="no-such-program --x")])
    assert statuses(report) == {"a": FAILED}
    assert "not found" in str(report.outcomes[0].error)


class Cutting(LocalTransport):
    """Loses the connection after this many bytes of output."""

    def __init__(self, host: Host, cut_at: int) -> None:
        super().__init__(host)
        self.left = cut_at

    def exchange(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        def cut(data: bytes) -> None:
            on_stdout(data[: max(0, self.left)])
            self.left -= len(data)
            if self.left <= 0:
                self.close()

        return super().exchange(
            command, stdin, on_stdout=cut, on_stderr=on_stderr, timeout_s=timeout_s
        )


class Counting(LocalTransport):
    """Counts the bytes of output."""

    count = 0

    def exchange(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        def counted(data: bytes) -> None:
            self.count += len(data)
            on_stdout(data)

        return super().exchange(
            command, stdin, on_stdout=counted, on_stderr=on_stderr, timeout_s=timeout_s
        )


def steps() -> list[Resource]:
    return [
        Step(name="a", before="echo one"),
        File(name="text", path="/etc/text", content="text\n" * 50),
        Step(name="b", needs=("a",), before="echo two"),
        Step(name="c", on_change_of=("b",)),
    ]


def test_run_interrupted_anywhere_reports_truthfully_and_next_run_converges(
    on_scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = on_scratch.shell.host()
    whole = Counting(host)
    converge(whole, steps(), lambda event: None, clock=time.monotonic)
    seen = set()
    with tree() as mine:
        monkeypatch.setenv(*next(iter(mine.env.items())))
        for number in range(1, 6):
            for path in ("var/lib/a", "var/lib/b", "var/lib/c", "etc/text"):
                (on_scratch.root / path).unlink(missing_ok=True)
            report = converge(
                Cutting(host, whole.count * number // 6),
                steps(),
                lambda event: None,
                clock=time.monotonic,
            )
            assert isinstance(report.error, Unreachable)
            found = statuses(report)
            for name, path in (
                ("a", "var/lib/a"),
                ("text", "etc/text"),
                ("b", "var/lib/b"),
                ("c", "var/lib/c"),
            ):
                assert found[name] in {CHANGED, UNKNOWN}
                if found[name] is CHANGED:
                    assert (on_scratch.root / path).exists()
            seen.add(tuple(found.values()))
            mine.wait_until_gone(20.0)
            assert not list(on_scratch.root.glob("etc/text.provision.*"))
            after = run(host, steps())
            assert set(statuses(after).values()) <= {OK, CHANGED}
            assert (on_scratch.root / "etc/text").read_text() == "text\n" * 50
    assert len(seen) >= 3
