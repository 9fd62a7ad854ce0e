"""The job that every tool does: nine idempotent steps, two directories to a container's marker."""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.model import Facts, State
from provision.core.resource import Resource
from provision.core.shell import RemotePath, Script, fields, script
from provision.resources import Directory, ExecBindMount, File
from provision.settings import Settings

DRIVER_VERSION = "535.183.01"
IMAGE = "worker:1"


@dataclass(frozen=True, kw_only=True)
class DriverFile(Resource):
    """A driver that takes no time to install: a program that prints its version."""

    version: str

    def probe(self) -> Script:
        return script(
            'test ! -r "$file" || sh "$file"', file=RemotePath("/var/lib/nvidia/bin-version")
        )

    def read(self, text: str) -> State | None:
        return {"version": text.strip()} if text.strip() else None

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        return {"version": self.version}

    def ensure(self, facts: Facts) -> Script:  # noqa: ARG002
        body = 'echo "echo $version" >"$file"\nchmod 755 "$file"'
        return script(body, file=RemotePath("/var/lib/nvidia/bin-version"), version=self.version)


@dataclass(frozen=True, kw_only=True)
class ContainerMarker(Resource):
    """A container that takes no time to start: a file that names its image."""

    image: str

    def probe(self) -> Script:
        return script(
            'test ! -r "$file" || cat "$file"', file=RemotePath("/var/lib/bench/container")
        )

    def read(self, text: str) -> State | None:
        return fields(text) or None

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        return {"image": self.image}

    def ensure(self, facts: Facts) -> Script:  # noqa: ARG002
        return script(
            'echo "image=$image" >"$file"',
            file=RemotePath("/var/lib/bench/container"),
            image=self.image,
        )


def recipe(settings: Settings) -> list[Resource]:  # noqa: ARG001
    """The nine steps; the bind mount and the remount are one resource."""
    return [
        Directory(name="nvidia-dir", path="/var/lib/nvidia"),
        Directory(name="bench-dir", path="/var/lib/bench"),
        DriverFile(name="driver-file", version=DRIVER_VERSION),
        ExecBindMount(name="exec-mount", path="/var/lib/nvidia"),
        File(
            name="profile",
            path="/var/lib/bench/profile.sh",
            content="export PATH=/var/lib/nvidia/bin:$PATH\n",
        ),
        File(
            name="limits",
            path="/var/lib/bench/limits.conf",
            content="* hard nofile 16384\n* soft nofile 16384\n",
        ),
        File(
            name="run",
            path="/var/lib/bench/run.sh",
            content='#!/bin/sh\nexec python3 -m worker "$@"\n',
            mode="0755",
        ),
        ContainerMarker(name="container", image=IMAGE),
    ]
