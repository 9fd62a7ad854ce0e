"""docker build as the legacy builder does it; RUN lines are printed and not executed."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import shutil
import sys
import tarfile
import tempfile
from typing import Any

from .dockerfile import Step, expand, parse, parse_command, parse_pairs
from .registry import new_image, pull, tag_image
from .store import DockerError, Record, Store, new_id, print_error, print_line, unpack, with_tag

_NEEDS_BUILDKIT = (
    "the --{} option requires BuildKit. Refer to https://docs.docker.com/go/buildkit/ to learn"
    " how to build images with BuildKit enabled"
)
_BUILDKIT_MISSING = """\
ERROR: BuildKit is enabled but the buildx component is missing or broken.
       Install the buildx component to build images with BuildKit:
       https://docs.docker.com/go/buildx/"""
_DEPRECATED = """\
DEPRECATED: The legacy builder is deprecated and will be removed in a future release.
            Install the buildx component to build images with BuildKit:
            https://docs.docker.com/go/buildx/
"""


class Builder:
    """One build. Each stage has a folder with the files that it copied."""

    def __init__(self, store: Store, context: str, options: dict[str, Any]) -> None:
        self.store = store
        self.context = context
        self.options = options
        self.arguments: dict[str, str] = {}
        self.given = dict(word.partition("=")[::2] for word in options["build_arg"])
        self.config: dict[str, Any] = {}
        self.work = tempfile.mkdtemp(prefix="build-", dir=store.base)
        self.stages: dict[str, str] = {}
        self.stage_number = -1
        self.identity = ""

    def run(self, steps: list[Step]) -> Record:
        """Execute the steps and return the image. Raises `DockerError` when one fails."""
        try:
            for number, step in enumerate(steps, 1):
                print_line(f"Step {number}/{len(steps)} : {step.text}")
                self._check(step)
                getattr(self, f"_do_{step.name.lower()}", self._do_nothing)(step)
                self.identity = new_id(
                    self.identity,
                    step.text,
                    json.dumps(self.config, sort_keys=True),
                    self._digest(),
                )
                print_line(f" ---> {self.identity[:12]}")
            return self._finish()
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    def _check(self, step: Step) -> None:
        if step.name == "RUN":
            for flag in step.flags:
                raise DockerError(_NEEDS_BUILDKIT.format(flag))
        for flag in ("chmod", "link", "parents", "exclude", "checksum", "keep-git-dir"):
            if flag in step.flags:
                raise DockerError(_NEEDS_BUILDKIT.format(flag))

    def _finish(self) -> Record:
        labels = dict(word.partition("=")[::2] for word in self.options["label"])
        self.config["Labels"] = {**(self.config.get("Labels") or {}), **labels}
        identity = "sha256:" + new_id(self.identity, json.dumps(labels, sort_keys=True))
        record = self.store.image(identity) or new_image(identity, self.config)
        folder = self.store.folder("images", identity)
        os.makedirs(folder, exist_ok=True)
        shutil.rmtree(f"{folder}/rootfs", ignore_errors=True)
        os.replace(self._files(), f"{folder}/rootfs")
        self.store.save("images", identity, record)
        for tag in self.options["tag"]:
            tag_image(self.store, record, tag)
        if self.options["quiet"]:
            print_line(identity)
        else:
            print_line(f"Successfully built {identity[7:19]}")
            for name in self.options["tag"]:
                print_line(f"Successfully tagged {with_tag(name)}")
        return record

    def _files(self) -> str:
        return f"{self.work}/{self.stage_number}"

    def _digest(self) -> str:
        """A digest of the stage's files, part of each step's id."""
        found = []
        for base, _, names in os.walk(self._files()):
            for name in sorted(names):
                path = os.path.join(base, name)
                with open(path, "rb") as file:
                    found.append(
                        new_id(os.path.relpath(path, self._files()), file.read().decode("latin-1"))
                    )
        return new_id(*sorted(found))

    def _values(self) -> dict[str, str]:
        environment = dict(word.partition("=")[::2] for word in self.config.get("Env") or [])
        return {**self.arguments, **environment}

    # --- instructions ---

    def _do_arg(self, step: Step) -> None:
        for word in shlex.split(step.rest):
            name, equals, default = word.partition("=")
            if name in self.given:
                self.arguments[name] = self.given[name]
            elif equals:
                self.arguments[name] = expand(default, self._values())

    def _do_from(self, step: Step) -> None:
        words = expand(step.rest, self.arguments).split()
        base = words[0]
        self.stage_number += 1
        os.makedirs(self._files(), exist_ok=True)
        if base in self.stages:
            shutil.copytree(self.stages[base], self._files(), symlinks=True, dirs_exist_ok=True)
        elif base == "scratch":
            self.config = {
                "Env": [],
                "Cmd": None,
                "Entrypoint": None,
                "Labels": {},
                "WorkingDir": "",
                "User": "",
            }
        else:
            image = self.store.image(base)
            if image is None or self.options["pull"]:
                image = pull(self.store, base)
            self.config = json.loads(json.dumps(image["Config"]))
            rootfs = self.store.folder("images", image["Id"]) + "/rootfs"
            if os.path.isdir(rootfs):
                shutil.copytree(rootfs, self._files(), symlinks=True, dirs_exist_ok=True)
            self.identity = image["Id"].removeprefix("sha256:")
        if len(words) == 3 and words[1].upper() == "AS":
            self.stages[words[2]] = self._files()
        self.stages[str(self.stage_number)] = self._files()

    def _do_env(self, step: Step) -> None:
        environment = dict(word.partition("=")[::2] for word in self.config.get("Env") or [])
        environment.update(parse_pairs(step.rest, self._values()))
        self.config["Env"] = [f"{key}={value}" for key, value in environment.items()]

    def _do_label(self, step: Step) -> None:
        self.config["Labels"] = {
            **(self.config.get("Labels") or {}),
            **parse_pairs(step.rest, self._values()),
        }

    def _do_workdir(self, step: Step) -> None:
        self.config["WorkingDir"] = os.path.join(
            self.config.get("WorkingDir") or "/", expand(step.rest, self._values())
        )
        os.makedirs(self._files() + self.config["WorkingDir"], exist_ok=True)

    def _do_user(self, step: Step) -> None:
        self.config["User"] = expand(step.rest, self._values())

    def _do_entrypoint(self, step: Step) -> None:
        self.config["Entrypoint"] = parse_command(step.rest)
        self.config["Cmd"] = None

    def _do_cmd(self, step: Step) -> None:
        self.config["Cmd"] = parse_command(step.rest)

    def _do_run(self, step: Step) -> None:
        print_line(f" ---> Running in {new_id(self.identity, step.text)[:12]}")
        if self.store.fault("build_fails"):
            raise DockerError(f"The command '/bin/sh -c {step.rest}' returned a non-zero code: 1")

    def _do_copy(self, step: Step) -> None:
        words = json.loads(step.rest) if step.rest.startswith("[") else step.rest.split()
        *sources, target = [expand(word, self._values()) for word in words]
        stage = step.flags.get("from")
        if stage is not None and stage not in self.stages:
            pull(self.store, stage) if self.store.image(stage) is None else None
            self._copy_placeholder(target, sources)
            return
        origin = self.stages[stage] if stage is not None else self.context
        into = self._files() + os.path.join(self.config.get("WorkingDir") or "/", target)
        many = len(sources) > 1 or target.endswith("/") or target in (".", "./")
        for source in sources:
            self._copy_one(origin, source, into, many=many)

    _do_add = _do_copy

    def _copy_one(self, origin: str, source: str, into: str, *, many: bool) -> None:
        path = os.path.normpath(os.path.join(origin, source.lstrip("/")))
        if not path.startswith(origin) or not os.path.exists(path):
            raise DockerError(
                "COPY failed: file not found in build context or excluded by .dockerignore: "
                f"stat {source}: file does not exist"
            )
        if os.path.isdir(path):
            shutil.copytree(path, into, symlinks=True, dirs_exist_ok=True)
            return
        target = os.path.join(into, os.path.basename(path)) if many or os.path.isdir(into) else into
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(path, target)

    def _copy_placeholder(self, target: str, sources: list[str]) -> None:
        """Put a program in place of what another image has; only its presence is simulated."""
        place = self._files() + os.path.join("/", target)
        os.makedirs(place, exist_ok=True)
        if sources == ["/opt/apache/beam"]:
            with open(f"{place}/boot", "w") as file:
                file.write("#!/bin/sh\necho 'the Beam SDK is not part of the mock' >&2\nexit 1\n")
            os.chmod(f"{place}/boot", 0o755)  # noqa: S103 - a program

    def _do_nothing(self, step: Step) -> None:
        del step


def build(store: Store, where: str, options: dict[str, Any]) -> Record:
    """`docker build OPTIONS WHERE`; `-` reads a tar or a Dockerfile from standard input.

    Raises `DockerError` in Docker's words.
    """
    if os.environ.get("DOCKER_BUILDKIT", "0") not in ("", "0"):
        raise DockerError(_BUILDKIT_MISSING)
    print_error(_DEPRECATED)
    context = tempfile.mkdtemp(prefix="context-", dir=store.base)
    try:
        size = _fill_context(store, where, context, options["file"])
        if not options["quiet"]:
            print_line(f"Sending build context to Docker daemon  {size / 1000:.4g}kB")
        name = options["file"] or "Dockerfile"
        try:
            with open(os.path.join(context, name)) as file:
                text = file.read()
        except FileNotFoundError:
            raise DockerError(
                f"Error response from daemon: Cannot locate specified Dockerfile: {name}"
            ) from None
        return Builder(store, context, options).run(parse(text))
    finally:
        shutil.rmtree(context, ignore_errors=True)


def _fill_context(store: Store, where: str, context: str, file_name: str | None) -> int:
    """Put the build context into the folder `context` and return its size in bytes."""
    if where != "-":
        folder = store.real(where) if where.startswith("/") else where
        if not os.path.isdir(folder):
            raise DockerError(f'unable to prepare context: path "{where}" not found')
        shutil.copytree(folder, context, symlinks=True, dirs_exist_ok=True)
        return sum(
            os.path.getsize(os.path.join(base, name))
            for base, _, names in os.walk(context)
            for name in names
        )
    data = sys.stdin.buffer.read()
    if not data:
        raise DockerError("unable to prepare context: the Dockerfile (Dockerfile) cannot be empty")
    size = len(data)
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        if len(data) > 262 and data[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                unpack(archive, context)
            return size
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DockerError(
            f"Error response from daemon: Error processing tar file(exit status 1): {error}"
        ) from error
    if file_name:
        raise DockerError("invalid argument: can't use stdin for both build context and dockerfile")
    with open(f"{context}/Dockerfile", "wb") as file:
        file.write(data)
    return size
