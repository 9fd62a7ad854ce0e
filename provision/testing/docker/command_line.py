"""The flags of each docker command, and their parser, which refuses unknown flags."""

from __future__ import annotations

from .store import DockerError

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any, NoReturn

BOOL, ONE, MANY = "bool", "one", "many"
Spec = dict[str, tuple[str, str]]
"""Long name → (kind, short name or empty)."""

_ENV = {
    "env": (MANY, "e"),
    "env-file": (MANY, ""),
    "user": (ONE, "u"),
    "workdir": (ONE, "w"),
    "interactive": (BOOL, "i"),
    "tty": (BOOL, "t"),
    "privileged": (BOOL, ""),
}
CREATE: Spec = {
    **_ENV,
    **dict.fromkeys(
        (
            "name",
            "entrypoint",
            "network",
            "net",
            "ipc",
            "pid",
            "shm-size",
            "restart",
            "runtime",
            "gpus",
            "pull",
            "cpus",
            "stop-signal",
            "stop-timeout",
            "log-driver",
            "cgroupns",
            "platform",
            "cpuset-cpus",
        ),
        (ONE, ""),
    ),
    **dict.fromkeys(
        (
            "device",
            "ulimit",
            "mount",
            "cap-add",
            "cap-drop",
            "security-opt",
            "add-host",
            "tmpfs",
            "group-add",
            "log-opt",
            "sysctl",
            "label-file",
            "device-cgroup-rule",
        ),
        (MANY, ""),
    ),
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
    "tag": (MANY, "t"),
    "label": (MANY, ""),
    "build-arg": (MANY, ""),
    "file": (ONE, "f"),
    "quiet": (BOOL, "q"),
    **dict.fromkeys(("pull", "no-cache", "rm", "force-rm", "squash"), (BOOL, "")),
    "network": (ONE, ""),
    "progress": (ONE, ""),
    "platform": (ONE, ""),
    "shm-size": (ONE, ""),
    "ulimit": (MANY, ""),
}
FORMAT: Spec = {"format": (ONE, "f"), "size": (BOOL, "s"), "type": (ONE, "")}
PS: Spec = {
    "all": (BOOL, "a"),
    "quiet": (BOOL, "q"),
    "filter": (MANY, "f"),
    "format": (ONE, ""),
    "no-trunc": (BOOL, ""),
    "latest": (BOOL, "l"),
}
IMAGES: Spec = {
    "all": (BOOL, "a"),
    "quiet": (BOOL, "q"),
    "filter": (MANY, "f"),
    "format": (ONE, ""),
    "no-trunc": (BOOL, ""),
    "digests": (BOOL, ""),
}
STOP: Spec = {"time": (ONE, "t"), "timeout": (ONE, ""), "signal": (ONE, "s")}
START: Spec = {"attach": (BOOL, "a"), "interactive": (BOOL, "i")}
KILL: Spec = {"signal": (ONE, "s")}
REMOVE: Spec = {"force": (BOOL, "f"), "volumes": (BOOL, "v"), "link": (BOOL, "l")}
RMI: Spec = {"force": (BOOL, "f"), "no-prune": (BOOL, "")}
LOGS: Spec = {
    "tail": (ONE, "n"),
    "follow": (BOOL, "f"),
    "timestamps": (BOOL, "t"),
    "since": (ONE, ""),
}
PULL: Spec = {"quiet": (BOOL, "q"), "platform": (ONE, ""), "all-tags": (BOOL, "a")}
LOGIN: Spec = {"username": (ONE, "u"), "password": (ONE, "p"), "password-stdin": (BOOL, "")}
COPY: Spec = {"archive": (BOOL, "a"), "follow-link": (BOOL, "L"), "quiet": (BOOL, "q")}
VOLUME_CREATE: Spec = {
    "name": (ONE, ""),
    "driver": (ONE, "d"),
    "label": (MANY, ""),
    "opt": (MANY, "o"),
}
PRUNE: Spec = {
    "force": (BOOL, "f"),
    "all": (BOOL, "a"),
    "filter": (MANY, ""),
    "volumes": (BOOL, ""),
}
NONE: Spec = {}


def parse(
    command: str, spec: Spec, words: list[str], *, stop_at_word: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Options by their long names (with `_`), and the other words. Raises `DockerError`."""
    parser = _Parser(command, spec, list(words))
    rest: list[str] = []
    while parser.queue:
        word = parser.queue.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            parser.take(name, value if equals else None, f"--{name}")
        elif word.startswith("-") and len(word) > 1:
            parser.take_short(word[1:])
        else:
            rest.append(word)
            if stop_at_word:
                break
    return parser.options, rest + parser.queue


class _Parser:
    def __init__(self, command: str, spec: Spec, queue: list[str]) -> None:
        self.queue = queue
        self.options: dict[str, Any] = {}
        for name, (kind, _) in spec.items():
            self.options[_key(name)] = {BOOL: False, ONE: None}.get(kind) if kind != MANY else []
        self._command = command
        self._spec = spec
        self._shorts = {short: name for name, (_, short) in spec.items() if short}

    def _refuse(self, what: str) -> NoReturn:
        raise DockerError(f"{what}\nSee 'docker {self._command} --help'.", 125)

    def take_short(self, letters: str) -> None:
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter not in self._shorts:
                self._refuse(f"unknown shorthand flag: '{letter}' in -{letter}{letters}")
            name = self._shorts[letter]
            if self._spec[name][0] == BOOL:
                self.take(name, None, f"-{letter}")
            else:
                self.take(name, letters.removeprefix("=") or None, f"'{letter}' in -{letter}")
                return

    def take(self, name: str, value: str | None, shown: str) -> None:
        if name not in self._spec:
            self._refuse(f"unknown flag: --{name}")
        kind = self._spec[name][0]
        if kind == BOOL:
            if value not in (None, "true", "false"):
                raise DockerError(
                    f'invalid argument "{value}" for "{shown}" flag: '
                    f'strconv.ParseBool: parsing "{value}": invalid syntax',
                    125,
                )
            self.options[_key(name)] = value != "false"
            return
        if value is None:
            if not self.queue:
                self._refuse(f"flag needs an argument: {shown}")
            value = self.queue.pop(0)
        if kind == MANY:
            self.options[_key(name)].append(value)
        else:
            self.options[_key(name)] = value


def _key(name: str) -> str:
    return name.replace("-", "_")
