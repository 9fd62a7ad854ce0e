"""A stand-in for `gcloud compute start-iap-tunnel`: a program that pipes to a mock host's SSH port, or fails as the real one.

    program = install(folder)          # folder/gcloud; folder holds the record of a mock, mock.json
    fail(folder, 4033, 4003)           # the next call fails with 4033, the one after it with 4003

As Identity-Aware Proxy does, it looks the instance up by project, zone and name: 4047 for one that
is not there, 4003 for one where nothing listens. What is printed is the real program's
(hashicorp/packer-plugin-googlecompute#195, google-github-actions/ ssh-compute#44,
GoogleCloudPlatform/iap-desktop#866).
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

from provision.cloud.api.protocol import MOCK_PORT_ATTRIBUTE
from provision.core.shell import script

RECORD = "mock.json"
_FAILURES = "iap-failures"
_SAYS = {
    4003: "'failed to connect to backend'",
    4033: "'not authorized'",
    4047: "'Failed to lookup instance'",
    4054: '"Request is prohibited by organization\'s policy. ID: wRKqWpA56st2bQTS."',
}
_CHUNK_BYTES = 64 * 1024
_PROGRAM = """
PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
exec "$python" -m provision.testing.gcloud "$folder" "$@"
"""


def install(folder: Path) -> Path:
    """Put the program into `folder`, which holds a mock's record, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / "gcloud"
    package = str(Path(__file__).resolve().parents[2])
    text = script(
        _PROGRAM, package=package, python=sys.executable, folder=str(folder.resolve())
    ).render()
    new = path.with_suffix(".new")
    new.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    new.chmod(0o755)
    new.replace(path)
    return path


def fail(folder: Path, *codes: int) -> None:
    """Have the next calls fail, each with one of the codes, before one gets through."""
    (folder / _FAILURES).write_text("".join(f"{code}\n" for code in codes), encoding="utf-8")


def main(words: list[str]) -> None:
    """The program: `FOLDER compute start-iap-tunnel NAME PORT --listen-on-stdin --project P --zone Z`."""
    folder, command, words = Path(words[0]), words[1:3], words[3:]
    options = dict(itertools.pairwise(words))
    if (
        command != ["compute", "start-iap-tunnel"]
        or "--listen-on-stdin" not in words
        or not {"--project", "--zone"} <= set(options)
    ):
        sys.stderr.write(
            "ERROR: (gcloud) this stand-in opens tunnels on its standard input, and nothing else\n"
        )
        sys.exit(2)
    _fail_as_told(folder)
    path = f"projects/{options['--project']}/zones/{options['--zone']}/instances/{words[0]}"
    _pipe(_connected(_port(folder, path)))


def _fail_as_told(folder: Path) -> None:
    try:
        codes = (folder / _FAILURES).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return
    if codes:
        fail(folder, *map(int, codes[1:]))
        _end(int(codes[0]))


def _end(code: int) -> NoReturn:
    sys.stderr.write(
        f"ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting [{code}: {_SAYS[code]}].\n"
    )
    sys.exit(1)


def _port(folder: Path, path: str) -> int:
    """Where the instance's mock host listens."""
    url = f"{json.loads((folder / RECORD).read_text())['compute_endpoint']}/compute/v1/{path}"
    namespace, key = MOCK_PORT_ATTRIBUTE.split("/")
    found = _ask(f"{url}/getGuestAttributes?queryPath={namespace}/")
    return next(int(item["value"]) for item in found["queryValue"]["items"] if item["key"] == key)


def _ask(url: str) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=30) as reply:
            found: dict[str, Any] = json.load(reply)
            return found
    except urllib.error.HTTPError:
        _end(4047)


def _connected(port: int) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=30)
    except OSError:
        _end(4003)


def _pipe(sock: socket.socket) -> None:
    """Copy between the standard streams and the socket until the host's side ends."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sources: list[Any] = [sock, 0]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if sock in readable:
            data = sock.recv(_CHUNK_BYTES)
            if not data:
                return
            _write_all(data)
        if 0 in readable:
            data = os.read(0, _CHUNK_BYTES)
            if data:
                sock.sendall(data)
            else:
                sources.remove(0)
                sock.shutdown(socket.SHUT_WR)


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    main(sys.argv[1:])
