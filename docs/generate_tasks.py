"""Write docs/tasks.md from the tasks themselves. Run it as `python docs/generate_tasks.py`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from provision.cli.adapter import CommandTask
from provision.cli.flags import COMMON, TARGETS, Flag
from provision.cli.namespace import namespace

TARGET = Path(__file__).with_name("tasks.md")
HEAD = """\
# Tasks

For users of the command line: every task with its flags. `python docs/generate_tasks.py` writes
this page from the code, and a test compares them.

In a project with a `tasks.py`, a task is `invoke NAME`; from any folder it is `provision NAME`.
Words after `--` are passed on as typed. A flag in brackets is optional.
"""


def tasks() -> dict[str, CommandTask]:
    """Return every task by its full name."""
    root = namespace()
    return {name: root[name] for name in sorted(root.task_names)}


def page() -> str:
    """Return the text of docs/tasks.md."""
    found = tasks()
    rows = [
        f"| [`{name}`](#{name.replace('.', '')}) | {_first_line(task)} |"
        for name, task in found.items()
    ]
    shared = [
        "## Flags that tasks share",
        "Every task takes:",
        _flags(COMMON),
        "Tasks that act on hosts also take these (without them they act on the settings' VM):",
        _flags(TARGETS),
    ]
    parts = [HEAD.rstrip(), "\n".join(["| task | does |", "|---|---|", *rows]), *shared]
    return (
        "\n\n".join(
            [*parts, *(part for name, task in found.items() for part in _section(name, task))]
        )
        + "\n"
    )


def _section(name: str, task: CommandTask) -> Iterator[str]:
    yield f"## {name}"
    yield inspect.cleandoc(task.__doc__ or "")
    yield f"    invoke {_usage(name, task)}"
    own = [*_own(task)]
    if own:
        yield _flags(
            own, [argument.names[0] for argument in task.get_arguments() if argument.positional]
        )
    if task.spec.targets:
        lacking = ", ".join(
            f"`--{flag.name.replace('_', '-')}`"
            for flag in TARGETS
            if flag not in task.spec.host_flags
        )
        yield "Takes the flags for hosts" + (f", but for {lacking}." if lacking else ".")


def _usage(name: str, task: CommandTask) -> str:
    words = [name]
    for argument in task.get_arguments():
        text = argument.names[0]
        if argument.positional:
            words.append(text.upper())
        elif text not in _shared(task):
            words.append(f"[{_written(text, switch=argument.kind is bool)}]")
    if task.spec.words:
        rest = task.spec.words.upper().removeprefix("A ")
        words.append(f"-- {rest}" if task.spec.words_required else f"[-- {rest}]")
    return " ".join(words)


def _shared(task: CommandTask) -> set[str]:
    """Return the names of the flags that the page explains once for all tasks."""
    return {
        flag.name.replace("_", "-") for flag in (*COMMON, *(TARGETS if task.spec.targets else ()))
    }


def _own(task: CommandTask) -> Iterator[Flag]:
    for argument in task.get_arguments():
        if argument.names[0] not in _shared(task):
            yield Flag(
                argument.names[0], argument.help or "", None if argument.kind is not bool else False
            )


def _flags(flags: Iterable[Flag], positional: Collection[str] = ()) -> str:
    rows = []
    for flag in flags:
        dashed = flag.name.replace("_", "-")
        written = (
            dashed.upper()
            if flag.name in positional
            else _written(dashed, switch=flag.default is False)
        )
        rows.append(f"| `{written}` | {flag.about} |")
    return "\n".join(["| flag | |", "|---|---|", *rows])


def _written(flag: str, *, switch: bool) -> str:
    return f"--{flag}" if switch else f"--{flag}={flag.upper().replace('-', '_')}"


def _first_line(task: CommandTask) -> str:
    return (task.__doc__ or "").strip().splitlines()[0]


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    print(f"wrote {TARGET}", file=sys.stderr)
