"""The entry point of the docker stand-in."""

from __future__ import annotations

import errno
import os
import sys

from . import (  # noqa: F401 - they register their commands
    container_commands,
    engine_commands,
    image_commands,
    inspect_commands,
    volume_commands,
)
from .command_table import COMMANDS, Command
from .store import DockerError, Store, print_error

_GROUPS = frozenset(
    (
        "container",
        "image",
        "volume",
        "system",
        "builder",
        "network",
        "buildx",
        "compose",
        "context",
        "manifest",
        "plugin",
    )
)
_REAL = frozenset(
    [
        "attach",
        "commit",
        "diff",
        "events",
        "export",
        "history",
        "import",
        "load",
        "logout",
        "network",
        "pause",
        "port",
        "rename",
        "save",
        "search",
        "stats",
        "swarm",
        "unpause",
        "update",
    ]
)


def main(arguments: list[str]) -> int:
    """Run `docker ARGUMENTS` and return its exit status; raises no `DockerError`."""
    store = Store(
        os.environ.get("PROVISION_MOCK_ROOT", ""),
        os.environ.get("PROVISION_MOCK_STATE", "/run/provision-mock"),
    )
    try:
        words = _words(list(arguments))
        if store.fault("docker_down") and words[0] != "_boot":
            raise DockerError(  # noqa: TRY301 - printed as every other refusal is
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
                "Is the docker daemon running?"
            )
        return _function(words[0])(store, words[1:])
    except DockerError as error:
        print_error(str(error))
        return error.status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:
        print_error(f"Error response from daemon: {_reason(store, error)}")
        return 1


def _words(words: list[str]) -> list[str]:
    """The command and its arguments, after the client's own flags."""
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--config" and words:
            os.environ["DOCKER_CONFIG"] = words.pop(0)
        elif word.startswith("--config="):
            os.environ["DOCKER_CONFIG"] = word.partition("=")[2]
        elif word in ("--version", "-v"):
            return ["version", "--format", "Docker version {{.Client.Version}}, build mock"]
        else:
            raise DockerError(f"unknown flag: {word}\nSee 'docker --help'.", 125)
    if not words:
        raise DockerError("Usage:  docker [OPTIONS] COMMAND")
    return (
        [f"{words[0]} {words[1]}", *words[2:]] if words[0] in _GROUPS and len(words) > 1 else words
    )


def _function(name: str) -> Command:
    if name in COMMANDS:
        return COMMANDS[name]
    first = name.split(maxsplit=1)[0]
    if first in _REAL or first in _GROUPS - {"buildx", "compose"}:
        raise DockerError(f"docker: the mock does not simulate `docker {name}`", 125)
    raise DockerError(f"docker: '{name}' is not a docker command.\nSee 'docker --help'")


def _reason(store: Store, error: OSError) -> str:
    path = store.host_path(str(error.filename or "/var/lib/docker"))
    if error.errno in (errno.EFBIG, errno.ENOSPC):
        return f"write {path}: no space left on device"
    return f"{error.strerror.lower() if error.strerror else error}: {path}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
