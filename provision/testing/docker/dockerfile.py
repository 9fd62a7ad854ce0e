"""Dockerfiles as the legacy builder parses them: instructions, variables, error messages."""

from __future__ import annotations

import json
import re
import shlex

from .store import DockerError

_KNOWN = frozenset(
    [
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ]
)
_VARIABLE = re.compile(r"\\\$|\$(\w+)|\$\{(\w+)(?:(:?[-+])((?:[^{}]|\$\{\w+\})*))?\}")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)")


class Step:
    """One instruction: line number, name, flags and the rest of its text."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        name, _, rest = text.partition(" ")
        self.name = name.upper()
        self.flags: dict[str, str] = {}
        rest = rest.strip()
        while found := re.match(r"--([a-z-]+)(?:=(\S*))?\s+", rest):
            self.flags[found.group(1)] = found.group(2) or ""
            rest = rest[found.end() :]
        self.rest = rest
        self.text = f"{self.name} {text.partition(' ')[2].strip()}"


def parse(dockerfile: str) -> list[Step]:
    """The instructions. Raises `DockerError` in the parser's words."""
    steps = []
    current, start = "", 0
    for number, line in enumerate(dockerfile.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and not current):
            continue
        start = start if current else number
        if stripped.endswith("\\"):
            current += stripped[:-1]
            continue
        step = Step(start, (current + stripped).strip())
        current = ""
        if step.name not in _KNOWN:
            raise DockerError(
                f"Error response from daemon: dockerfile parse error line {start}: "
                f"unknown instruction: {step.name}"
            )
        if step.name in ("RUN", "COPY", "ADD") and _HEREDOC.search(
            re.sub(r"'[^']*'|\"[^\"]*\"", "", step.rest)
        ):
            raise DockerError(
                f"Error response from daemon: Dockerfile parse error line {start}: "
                "heredoc requires BuildKit"
            )
        steps.append(step)
    if current:
        steps.append(Step(start, current.strip()))
    if not steps:
        raise DockerError("Error response from daemon: the Dockerfile (Dockerfile) cannot be empty")
    first = next((step for step in steps if step.name != "ARG"), None)
    if first is None or first.name != "FROM":
        raise DockerError("Error response from daemon: no build stage in current context")
    return steps


def expand(text: str, values: dict[str, str]) -> str:
    """The text with its variables replaced: $x, ${x}, ${x:-word}, ${x:+word}."""

    def replace(found: re.Match[str]) -> str:
        if found.group(0) == "\\$":
            return "$"
        name = found.group(1) or found.group(2)
        value = values.get(name, "")
        kind, word = found.group(3), found.group(4) or ""
        if kind in (":-", "-"):
            return value if value or (kind == "-" and name in values) else expand(word, values)
        if kind in (":+", "+"):
            return expand(word, values) if value or (kind == "+" and name in values) else ""
        return value

    return _VARIABLE.sub(replace, text)


def parse_pairs(text: str, values: dict[str, str]) -> dict[str, str]:
    """The pairs of KEY=VALUE words, or of the old form `KEY VALUE`. Raises `DockerError`."""
    words = shlex.split(text.replace("\\$", "\\\\$"), posix=True)
    if "=" not in text.split(maxsplit=1)[0]:
        key, _, value = text.partition(" ")
        return {key: expand(value.strip(), values)}
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise DockerError(
                f'Error response from daemon: Syntax error - can\'t find = in "{word}". '
                "Must be of the form: name=value"
            )
        found[expand(key, values)] = expand(value, values)
    return found


def parse_command(rest: str) -> list[str]:
    """The words of a command: a JSON list, or a line for /bin/sh."""
    if rest.startswith("["):
        try:
            return [str(word) for word in json.loads(rest)]
        except ValueError:
            pass
    return ["/bin/sh", "-c", rest]
