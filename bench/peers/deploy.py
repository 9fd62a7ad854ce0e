"""The nine steps for pyinfra: `pyinfra inventory.py deploy.py`."""

from __future__ import annotations

from io import StringIO

from pyinfra import host
from pyinfra.api import FactBase
from pyinfra.operations import files, server

DRIVER_VERSION = "535.183.01"
IMAGE = "worker:1"


class Lines(FactBase):
    """The output of a command as a list of lines."""

    def command(self, text: str) -> str:
        return text

    def process(self, output: list[str]) -> list[str]:
        return list(output)


files.directory(name="nvidia-dir", path="/var/lib/nvidia", mode="755")
files.directory(name="bench-dir", path="/var/lib/bench", mode="755")

if host.get_fact(
    Lines, "test ! -r /var/lib/nvidia/bin-version || sh /var/lib/nvidia/bin-version"
) != [DRIVER_VERSION]:
    path = "/var/lib/nvidia/bin-version"
    write = f"echo 'echo {DRIVER_VERSION}' >{path} && chmod 755 {path}"
    server.shell(name="driver-file", commands=[write])

options = host.get_fact(Lines, "findmnt -rno OPTIONS -M /var/lib/nvidia || true")
if not options:
    server.shell(name="bind-mount", commands=["mount --bind /var/lib/nvidia /var/lib/nvidia"])
if not options or "noexec" in options[-1].split(","):
    server.shell(name="exec-remount", commands=["mount -o remount,exec /var/lib/nvidia"])

files.put(
    name="profile",
    src=StringIO("export PATH=/var/lib/nvidia/bin:$PATH\n"),
    dest="/var/lib/bench/profile.sh",
    mode="644",
)
files.put(
    name="limits",
    src=StringIO("* hard nofile 16384\n* soft nofile 16384\n"),
    dest="/var/lib/bench/limits.conf",
    mode="644",
)
files.put(
    name="run",
    src=StringIO('#!/bin/sh\nexec python3 -m worker "$@"\n'),
    dest="/var/lib/bench/run.sh",
    mode="755",
)

if host.get_fact(Lines, "test ! -r /var/lib/bench/container || cat /var/lib/bench/container") != [
    f"image={IMAGE}"
]:
    server.shell(name="container", commands=[f"echo image={IMAGE} >/var/lib/bench/container"])
