"""A stand-in for `gcloud compute start-iap-tunnel`, which connects to a mock host's SSH port.

    program = install(folder)          # folder/gcloud; folder has the record of a mock, mock.json
    fail(folder, 4033, 4003)           # the next call fails with 4033, the one after it with 4003

Like Identity-Aware Proxy, it looks the instance up by project, zone and name: it fails with 4047
for an unknown instance, and with 4003 for one without a listener. Its messages are those of the
real program (hashicorp/packer-plugin-googlecompute#195, google-github-actions/ssh-compute#44,
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
from provision.core.files import write_atomically
from provision.core.shell import script

RECORD = "mock.json"
_FAILURES = "iap-failures"
_REASONS = {
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
    """Write the program into `folder`, which has a mock's record, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / "gcloud"
    package = str(Path(__file__).resolve().parents[2])
    text = script(
        _PROGRAM, package=package, python=sys.executable, folder=str(folder.resolve())
    ).render()
    write_atomically(path, f"#!/bin/sh\n{text}\n", mode=0o755)
    return path


def fail(folder: Path, *codes: int) -> None:
    """Make the next calls fail, each with one of the codes."""
    (folder / _FAILURES).write_text("".join(f"{code}\n" for code in codes), encoding="utf-8")


def main(words: list[str]) -> None:
    """Run `FOLDER compute start-iap-tunnel NAME PORT --listen-on-stdin --project P --zone Z`."""
    folder, command, words = Path(words[0]), words[1:3], words[3:]
    options = dict(itertools.pairwise(words))
    if (
        command != ["compute", "start-iap-tunnel"]
        or "--listen-on-stdin" not in words
        or not {"--project", "--zone"} <= set(options)
    ):
        sys.stderr.write("ERROR: (gcloud) this stand-in only opens tunnels on its standard input\n")
        sys.exit(2)
    _fail_if_scripted(folder)
    path = f"projects/{options['--project']}/zones/{options['--zone']}/instances/{words[0]}"
    _pipe(_connect(_find_port(folder, path)))


def _fail_if_scripted(folder: Path) -> None:
    try:
        codes = (folder / _FAILURES).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return
    if codes:
        fail(folder, *map(int, codes[1:]))
        _exit_with(int(codes[0]))


def _exit_with(code: int) -> NoReturn:
    sys.stderr.write(
        "ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting "
        f"[{code}: {_REASONS[code]}].\n"
    )
    sys.exit(1)


def _find_port(folder: Path, path: str) -> int:
    """The SSH port of the instance's mock host."""
    url = f"{json.loads((folder / RECORD).read_text())['compute_endpoint']}/compute/v1/{path}"
    namespace, key = MOCK_PORT_ATTRIBUTE.split("/")
    found = _request(f"{url}/getGuestAttributes?queryPath={namespace}/")
    return next(int(item["value"]) for item in found["queryValue"]["items"] if item["key"] == key)


def _request(url: str) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=30) as reply:
            found: dict[str, Any] = json.load(reply)
            return found
    except urllib.error.HTTPError:
        _exit_with(4047)


def _connect(port: int) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=30)
    except OSError:
        _exit_with(4003)


def _pipe(sock: socket.socket) -> None:
    """Copy between the standard streams and the socket until the host closes it."""
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
