"""Flags as Docker's command line takes them. Unknown ones fail; nothing is ever taken silently."""

from __future__ import annotations

from typing import Any

from .store import DockerError

BOOL, ONE, MANY = "bool", "one", "many"
Spec = dict[str, tuple[str, str]]
"""Long name → (kind, short name or empty)."""

_ENV = {"env": (MANY, "e"), "env-file": (MANY, ""), "user": (ONE, "u"), "workdir": (ONE, "w"), "interactive": (BOOL, "i"), "tty": (BOOL, "t"), "privileged": (BOOL, "")}
CREATE: Spec = {
    **_ENV,
    **{name: (ONE, "") for name in ("name", "entrypoint", "network", "net", "ipc", "pid", "shm-size", "restart", "runtime", "gpus", "pull", "cpus", "stop-signal", "stop-timeout", "log-driver", "cgroupns", "platform", "cpuset-cpus")},
    **{name: (MANY, "") for name in ("device", "ulimit", "mount", "cap-add", "cap-drop", "security-opt", "add-host", "tmpfs", "group-add", "log-opt", "sysctl", "label-file", "device-cgroup-rule")},
    "volume": (MANY, "v"),
    "label": (MANY, "l"),
    "publish": (MANY, "p"),
    "hostname": (ONE, "h"),
    "memory": (ONE, "m"),
    "init": (BOOL, ""),
    "rm": (BOOL, ""),
    "read-only": (BOOL, ""),
    "quiet": (BOOL, "q"),
}
RUN: Spec = {**CREATE, "detach": (BOOL, "d"), "sig-proxy": (BOOL, "")}
EXEC: Spec = {**_ENV, "detach": (BOOL, "d")}
BUILD: Spec = {
    **{"tag": (MANY, "t"), "label": (MANY, ""), "build-arg": (MANY, ""), "file": (ONE, "f"), "quiet": (BOOL, "q")},
    **{name: (BOOL, "") for name in ("pull", "no-cache", "rm", "force-rm", "squash")},
    **{"network": (ONE, ""), "progress": (ONE, ""), "platform": (ONE, ""), "shm-size": (ONE, ""), "ulimit": (MANY, "")},
}
FORMAT: Spec = {"format": (ONE, "f"), "size": (BOOL, "s"), "type": (ONE, "")}
PS: Spec = {"all": (BOOL, "a"), "quiet": (BOOL, "q"), "filter": (MANY, "f"), "format": (ONE, ""), "no-trunc": (BOOL, ""), "latest": (BOOL, "l")}
IMAGES: Spec = {"all": (BOOL, "a"), "quiet": (BOOL, "q"), "filter": (MANY, "f"), "format": (ONE, ""), "no-trunc": (BOOL, ""), "digests": (BOOL, "")}
STOP: Spec = {"time": (ONE, "t"), "timeout": (ONE, ""), "signal": (ONE, "s")}
START: Spec = {"attach": (BOOL, "a"), "interactive": (BOOL, "i")}
KILL: Spec = {"signal": (ONE, "s")}
REMOVE: Spec = {"force": (BOOL, "f"), "volumes": (BOOL, "v"), "link": (BOOL, "l")}
RMI: Spec = {"force": (BOOL, "f"), "no-prune": (BOOL, "")}
LOGS: Spec = {"tail": (ONE, "n"), "follow": (BOOL, "f"), "timestamps": (BOOL, "t"), "since": (ONE, "")}
PULL: Spec = {"quiet": (BOOL, "q"), "platform": (ONE, ""), "all-tags": (BOOL, "a")}
LOGIN: Spec = {"username": (ONE, "u"), "password": (ONE, "p"), "password-stdin": (BOOL, "")}
COPY: Spec = {"archive": (BOOL, "a"), "follow-link": (BOOL, "L"), "quiet": (BOOL, "q")}
VOLUME_CREATE: Spec = {"name": (ONE, ""), "driver": (ONE, "d"), "label": (MANY, ""), "opt": (MANY, "o")}
PRUNE: Spec = {"force": (BOOL, "f"), "all": (BOOL, "a"), "filter": (MANY, ""), "volumes": (BOOL, "")}
NONE: Spec = {}


def parse(command: str, spec: Spec, words: list[str], *, stop_at_word: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Options by their long names (with `_`), and the other words."""
    options: dict[str, Any] = {name.replace("-", "_"): {BOOL: False, ONE: None, MANY: []}[kind] for name, (kind, _) in spec.items()}
    for name, (kind, _) in spec.items():
        if kind == MANY:
            options[name.replace("-", "_")] = []
    shorts = {short: name for name, (_, short) in spec.items() if short}
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == "--":
            return options, rest + queue
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            _take(command, spec, options, name, value if equals else None, queue, f"--{name}")
        elif word.startswith("-") and len(word) > 1:
            _take_short(command, spec, shorts, options, word[1:], queue)
        else:
            rest.append(word)
            if stop_at_word:
                return options, rest + queue
    return options, rest


def _take_short(command: str, spec: Spec, shorts: dict[str, str], options: dict[str, Any], letters: str, queue: list[str]) -> None:
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in shorts:
            raise DockerError(f"unknown shorthand flag: '{letter}' in -{letter}{letters}\nSee 'docker {command} --help'.", 125)
        name = shorts[letter]
        if spec[name][0] == BOOL:
            _take(command, spec, options, name, None, queue, f"-{letter}")
        else:
            _take(command, spec, options, name, letters.removeprefix("=") if letters else None, queue, f"'{letter}' in -{letter}")
            return


def _take(command: str, spec: Spec, options: dict[str, Any], name: str, value: str | None, queue: list[str], shown: str) -> None:
    if name not in spec:
        raise DockerError(f"unknown flag: --{name}\nSee 'docker {command} --help'.", 125)
    kind = spec[name][0]
    key = name.replace("-", "_")
    if kind == BOOL:
        if value not in (None, "true", "false"):
            raise DockerError(f'invalid argument "{value}" for "{shown}" flag: strconv.ParseBool: parsing "{value}": invalid syntax', 125)
        options[key] = value != "false"
        return
    if value is None:
        if not queue:
            raise DockerError(f"flag needs an argument: {shown}\nSee 'docker {command} --help'.", 125)
        value = queue.pop(0)
    if kind == MANY:
        options[key].append(value)
    else:
        options[key] = value
