"""docker build as the legacy builder does it, RUN aside: its lines are echoed, nothing is executed."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
from typing import Any

from .registry import new_image, pull, tag_image
from .store import DockerError, Record, Store, complain, new_id, say, unpack

_NEEDS_BUILDKIT = "the --{} option requires BuildKit. Refer to https://docs.docker.com/go/buildkit/ to learn how to build images with BuildKit enabled"
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
    """One instruction: its line number, name, flags and the rest."""

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
    """The instructions. Raises `DockerError` with the parser's words."""
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
                f"Error response from daemon: dockerfile parse error line {start}: unknown instruction: {step.name}"
            )
        if step.name in ("RUN", "COPY", "ADD") and _HEREDOC.search(
            re.sub(r"'[^']*'|\"[^\"]*\"", "", step.rest)
        ):
            raise DockerError(
                f"Error response from daemon: Dockerfile parse error line {start}: heredoc requires BuildKit"
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
    """Dockerfile variables: $x, ${x}, ${x:-word}, ${x:+word}."""

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


def _pairs(text: str, values: dict[str, str]) -> dict[str, str]:
    """KEY=VALUE words, or the old form `KEY VALUE`."""
    words = shlex.split(text.replace("\\$", "\\\\$"), posix=True)
    if "=" not in text.split(maxsplit=1)[0]:
        key, _, value = text.partition(" ")
        return {key: expand(value.strip(), values)}
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise DockerError(
                f'Error response from daemon: Syntax error - can\'t find = in "{word}". Must be of the form: name=value'
            )
        found[expand(key, values)] = expand(value, values)
    return found


def _command(rest: str) -> list[str]:
    if rest.startswith("["):
        try:
            return [str(word) for word in json.loads(rest)]
        except ValueError:
            pass
    return ["/bin/sh", "-c", rest]


class Builder:
    """One build: a stage at a time, the files of its COPYs in a folder."""

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
        """Walk the steps and return the image."""
        try:
            for number, step in enumerate(steps, 1):
                say(f"Step {number}/{len(steps)} : {step.text}")
                self._refuse(step)
                getattr(self, f"_do_{step.name.lower()}", self._do_nothing)(step)
                self.identity = new_id(
                    self.identity,
                    step.text,
                    json.dumps(self.config, sort_keys=True),
                    self._digest(),
                )
                say(f" ---> {self.identity[:12]}")
            return self._finish()
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    def _refuse(self, step: Step) -> None:
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
            say(identity)
        else:
            say(f"Successfully built {identity[7:19]}")
            for name in self.options["tag"]:
                say(
                    f"Successfully tagged {name if ':' in name.rsplit('/', 1)[-1] else name + ':latest'}"
                )
        return record

    def _files(self) -> str:
        return f"{self.work}/{self.stage_number}"

    def _digest(self) -> str:
        """Names and sizes of the stage's files: what a cache looks at."""
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
        environment.update(_pairs(step.rest, self._values()))
        self.config["Env"] = [f"{key}={value}" for key, value in environment.items()]

    def _do_label(self, step: Step) -> None:
        self.config["Labels"] = {
            **(self.config.get("Labels") or {}),
            **_pairs(step.rest, self._values()),
        }

    def _do_workdir(self, step: Step) -> None:
        self.config["WorkingDir"] = os.path.join(
            self.config.get("WorkingDir") or "/", expand(step.rest, self._values())
        )
        os.makedirs(self._files() + self.config["WorkingDir"], exist_ok=True)

    def _do_user(self, step: Step) -> None:
        self.config["User"] = expand(step.rest, self._values())

    def _do_entrypoint(self, step: Step) -> None:
        self.config["Entrypoint"] = _command(step.rest)
        self.config["Cmd"] = None

    def _do_cmd(self, step: Step) -> None:
        self.config["Cmd"] = _command(step.rest)

    def _do_run(self, step: Step) -> None:
        say(f" ---> Running in {new_id(self.identity, step.text)[:12]}")
        if self.store.fault("build_fails"):
            raise DockerError(f"The command '/bin/sh -c {step.rest}' returned a non-zero code: 1")

    def _do_copy(self, step: Step) -> None:
        words = json.loads(step.rest) if step.rest.startswith("[") else step.rest.split()
        *sources, target = [expand(word, self._values()) for word in words]
        stage = step.flags.get("from")
        if stage is not None and stage not in self.stages:
            pull(self.store, stage) if self.store.image(stage) is None else None
            self._placeholder(target, sources)
            return
        origin = self.stages[stage] if stage is not None else self.context
        place = os.path.join(self.config.get("WorkingDir") or "/", target)
        into = self._files() + place
        many = len(sources) > 1 or target.endswith("/") or target in (".", "./")
        for source in sources:
            self._copy_one(origin, source, into, many=many)

    _do_add = _do_copy

    def _copy_one(self, origin: str, source: str, into: str, *, many: bool) -> None:
        path = os.path.normpath(os.path.join(origin, source.lstrip("/")))
        if not path.startswith(origin) or not os.path.exists(path):
            raise DockerError(
                f"COPY failed: file not found in build context or excluded by .dockerignore: stat {source}: file does not exist"
            )
        if os.path.isdir(path):
            shutil.copytree(path, into, symlinks=True, dirs_exist_ok=True)
            return
        target = os.path.join(into, os.path.basename(path)) if many or os.path.isdir(into) else into
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(path, target)

    def _placeholder(self, target: str, sources: list[str]) -> None:
        """What another image would bring: a program that says what it is. Only its presence is simulated."""
        place = self._files() + os.path.join("/", target)
        os.makedirs(place, exist_ok=True)
        if sources == ["/opt/apache/beam"]:
            with open(f"{place}/boot", "w") as file:
                file.write("#!/bin/sh\necho 'the Beam SDK is not part of the mock' >&2\nexit 1\n")
            os.chmod(f"{place}/boot", 0o755)  # noqa: S103 - a program

    def _do_nothing(self, step: Step) -> None:
        del step


def build(store: Store, where: str, options: dict[str, Any]) -> Record:
    """`docker build OPTIONS WHERE`; `-` reads a tar or a Dockerfile from standard input."""
    if os.environ.get("DOCKER_BUILDKIT", "0") not in ("", "0"):
        raise DockerError(
            "ERROR: BuildKit is enabled but the buildx component is missing or broken.\n"
            "       Install the buildx component to build images with BuildKit:\n       https://docs.docker.com/go/buildx/"
        )
    complain(
        "DEPRECATED: The legacy builder is deprecated and will be removed in a future release.\n"
        "            Install the buildx component to build images with BuildKit:\n            https://docs.docker.com/go/buildx/\n"
    )
    context = tempfile.mkdtemp(prefix="context-", dir=store.base)
    try:
        size = _receive(store, where, context, options["file"])
        if not options["quiet"]:
            say(f"Sending build context to Docker daemon  {size / 1000:.4g}kB")
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


def _receive(store: Store, where: str, context: str, file_name: str | None) -> int:
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
