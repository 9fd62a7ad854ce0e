"""The entry point of the docker stand-in."""

from __future__ import annotations

import errno
import os
import sys

from .commands import COMMANDS
from .store import DockerError, Store, complain

_GROUPS = frozenset(("container", "image", "volume", "system", "builder", "network", "buildx", "compose", "context", "manifest", "plugin"))
_REAL = frozenset(
    "attach commit diff events export history import load logout network pause port rename save search stats swarm top unpause update".split()
)


def main(arguments: list[str]) -> int:
    """Run `docker ARGUMENTS` and return its exit status."""
    store = Store(os.environ.get("PROVISION_MOCK_ROOT", ""), os.environ.get("PROVISION_MOCK_STATE", "/run/provision-mock"))
    words = list(arguments)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--config":
            os.environ["DOCKER_CONFIG"] = words.pop(0)
        elif word.startswith("--config="):
            os.environ["DOCKER_CONFIG"] = word.partition("=")[2]
        elif word in ("--version", "-v"):
            words = ["version", "--format", "Docker version {{.Client.Version}}, build mock"]
        else:
            complain(f"unknown flag: {word}\nSee 'docker --help'.")
            return 125
    if not words:
        complain("Usage:  docker [OPTIONS] COMMAND")
        return 1
    if words[0] in _GROUPS and len(words) > 1:
        words = [f"{words[0]} {words[1]}", *words[2:]]
    if store.fault("docker_down") and words[0] != "_boot":
        complain("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
        return 1
    function = COMMANDS.get(words[0])
    if function is None:
        first = words[0].split()[0]
        known = first in _REAL or first in _GROUPS - {"buildx", "compose"}
        complain(f"docker: the mock does not simulate `docker {words[0]}`" if known else f"docker: '{words[0]}' is not a docker command.\nSee 'docker --help'")
        return 125 if known else 1
    try:
        return function(store, words[1:])
    except DockerError as error:
        complain(str(error))
        return error.status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.ENOSPC):
            complain(f"Error response from daemon: write {store.host_path(str(error.filename or '/var/lib/docker'))}: no space left on device")
            return 1
        complain(f"Error response from daemon: {error.strerror.lower() if error.strerror else error}: {error.filename or ''}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
