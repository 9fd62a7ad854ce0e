"""Commands about containers."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

from . import (
    command_line,
    container_create,
    container_processes,
    container_program,
    container_start,
)
from .command_table import Words, apply_format, check_count, command
from .container_exec import exec_in_container
from .container_state import remove_container, show_logs, state_of, stop_container
from .store import (
    DockerError,
    Record,
    Store,
    daemon_error,
    print_error,
    print_line,
    unpack,
    with_tag,
)

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any


def _new(store: Store, options: dict[str, Any], rest: Words) -> Record:
    options["network"] = options["network"] or options.pop("net")
    return container_create.create(store, options, rest[0], rest[1:])


@command("create", "container create")
def create(store: Store, words: Words) -> int:
    """`docker create`."""
    options, rest = command_line.parse("create", command_line.CREATE, words, stop_at_word=True)
    check_count("create", rest, 1)
    print_line(_new(store, options, rest)["Id"])
    return 0


@command("run", "container run")
def run(store: Store, words: Words) -> int:
    """`docker run`. Raises `DockerError` as docker fails, and for what is not simulated."""
    options, rest = command_line.parse("run", command_line.RUN, words, stop_at_word=True)
    check_count("run", rest, 1)
    if options["tty"] and not options["detach"]:
        raise DockerError(
            "docker: the mock does not simulate `docker run -t` in the foreground", 125
        )
    if options["detach"] and options["rm"]:
        raise DockerError("docker: the mock does not simulate `docker run --detach --rm`", 125)
    try:
        with store.lock():
            record = _new(store, options, rest)
            if options["detach"]:
                container_start.start(store, record)
                print_line(record["Id"])
                return 0
    except DockerError as error:
        raise DockerError(
            f"docker: {error}\nSee 'docker run --help'."
            if str(error).startswith("Error response")
            else str(error),
            _run_status(error),
        ) from error
    try:
        return container_start.start(store, record, attach=True, interactive=options["interactive"])
    except DockerError as error:
        raise DockerError(f"docker: {error}", _run_status(error)) from error
    finally:
        if options["rm"]:
            remove_container(store, record, force=True, volumes=True)


def _run_status(error: DockerError) -> int:
    """The exit status of `docker run`: 127 for every missing file (docker/cli, `toStatusError`)."""
    return 127 if "no such file or directory" in str(error) else max(error.status, 125)


@command("start", "container start")
def start(store: Store, words: Words) -> int:
    """`docker start`."""
    _, rest = command_line.parse("start", command_line.START, words)
    check_count("start", rest, 1)
    status = 0
    for name in rest:
        try:
            with store.lock():
                record = store.container_or_fail(name)
                container_start.start(store, record)
            print_line(name)
        except DockerError as error:
            print_error(f"{error}\nError: failed to start containers: {name}")
            status = 1
    return status


@command("stop", "container stop")
def stop(store: Store, words: Words) -> int:
    """`docker stop`."""
    return _stop(store, words, again=False)


@command("restart", "container restart")
def restart(store: Store, words: Words) -> int:
    """`docker restart`."""
    return _stop(store, words, again=True)


def _stop(store: Store, words: Words, *, again: bool) -> int:
    options, rest = command_line.parse("restart" if again else "stop", command_line.STOP, words)
    check_count("restart" if again else "stop", rest, 1)
    grace = float(options["time"] or options["timeout"] or 10)
    for name in rest:
        record = store.container_or_fail(name)
        stop_container(store, record, grace_s=grace)
        if again:
            with store.lock():
                container_start.start(store, record)
        print_line(name)
    return 0


@command("kill", "container kill")
def kill(store: Store, words: Words) -> int:
    """`docker kill`."""
    options, rest = command_line.parse("kill", command_line.KILL, words)
    check_count("kill", rest, 1)
    for name in rest:
        record = store.container_or_fail(name)
        if state_of(store, record)["Status"] != "running":
            daemon_error(f"cannot kill container: {name}: container {record['Id']} is not running")
        text = (options["signal"] or "KILL").removeprefix("SIG")
        number = int(text) if text.isdigit() else int(signal.Signals[f"SIG{text}"])
        if number == signal.SIGKILL:
            stop_container(store, record, grace_s=0, number=number)
        else:
            os.kill(record["State"]["Pid"], number)
        print_line(name)
    return 0


@command("rm", "container rm", "container remove")
def rm(store: Store, words: Words) -> int:
    """`docker rm`."""
    options, rest = command_line.parse("rm", command_line.REMOVE, words)
    check_count("rm", rest, 1)
    status = 0
    for name in rest:
        record = store.container(name)
        if record is None:
            print_error(f"Error response from daemon: No such container: {name}")
            status = status if options["force"] else 1
            continue
        remove_container(store, record, force=options["force"], volumes=options["volumes"])
        print_line(name)
    return status


@command("ps", "container ls", "container list")
def ps(store: Store, words: Words) -> int:
    """`docker ps`."""
    options, _ = command_line.parse("ps", command_line.PS, words)
    if not options["quiet"] and not options["format"]:
        print_line("CONTAINER ID   IMAGE     COMMAND   CREATED   STATUS    PORTS     NAMES")
    for record in reversed(store.all("containers")):
        state = state_of(store, record)
        if not _is_listed(record, state, options):
            continue
        identity = record["Id"] if options["no_trunc"] else record["Id"][:12]
        row = {"ID": identity, **_ps_row(record, state)}
        if options["quiet"]:
            print_line(identity)
        elif options["format"]:
            print_line(apply_format(options["format"], row))
        else:
            columns = ("ID", "Image", "Command", "Status", "Names")
            print_line("   ".join(row[column] for column in columns))
    return 0


def _is_listed(record: Record, state: Record, options: dict[str, Any]) -> bool:
    """True for a container that `docker ps` lists; stopped ones need --all or a status filter."""
    filters = options["filter"]
    if not (options["all"] or filters or state["Running"]):
        return False
    if not all(_matches(record, state, word) for word in filters):
        return False
    by_status = any(word.startswith("status=") for word in filters)
    return bool(options["all"] or state["Running"] or by_status)


def _ps_row(record: Record, state: Record) -> Record:
    stopped = (
        "Created" if state["Status"] == "created" else f"Exited ({state['ExitCode']}) 1 second ago"
    )
    return {
        "Image": record["Config"]["Image"],
        "Command": f'"{record["Path"]}"',
        "Status": "Up 1 second" if state["Running"] else stopped,
        "State": state["Status"],
        "Names": record["Name"][1:],
        "Labels": ",".join(f"{key}={value}" for key, value in record["Config"]["Labels"].items()),
        "CreatedAt": record["Created"],
    }


def _matches(record: Record, state: Record, word: str) -> bool:
    key, equals, value = word.partition("=")
    if not equals:
        daemon_error(f"invalid filter '{word}'")
    if key == "name":
        return (
            re.search(value, record["Name"]) is not None
            or re.search(value, record["Name"][1:]) is not None
        )
    if key == "label":
        name, has_value, wanted = value.partition("=")
        labels = record["Config"]["Labels"]
        return name in labels and (not has_value or labels[name] == wanted)
    if key == "status":
        return bool(state["Status"] == value)
    if key == "ancestor":
        return value in (record["Config"]["Image"], record["Image"]) or with_tag(value) == with_tag(
            record["Config"]["Image"]
        )
    if key == "id":
        return bool(record["Id"].startswith(value))
    return daemon_error(f"invalid filter '{key}'")


@command("exec", "container exec")
def exec_(store: Store, words: Words) -> int:
    """`docker exec`."""
    options, rest = command_line.parse("exec", command_line.EXEC, words, stop_at_word=True)
    check_count("exec", rest, 2)
    return exec_in_container(store, store.container_or_fail(rest[0]), options, rest[1:])


@command("top", "container top")
def top(store: Store, words: Words) -> int:
    """`docker top NAME -eo pid`: PIDs of the host. Raises `DockerError`."""
    check_count("top", words, 1)
    if words[1:] != ["-eo", "pid"]:
        raise DockerError("docker: the mock simulates `docker top` with `-eo pid` only")
    record = store.container_or_fail(words[0])
    if not state_of(store, record)["Running"]:
        daemon_error(f"container {record['Id']} is not running")
    for line in ("PID", *map(str, sorted(container_processes.container_pids(record["Id"])))):
        print_line(line)
    return 0


@command("logs", "container logs")
def logs(store: Store, words: Words) -> int:
    """`docker logs`. Raises `DockerError` for what is not simulated."""
    options, rest = command_line.parse("logs", command_line.LOGS, words)
    check_count("logs", rest, 1, 1)
    if options["follow"]:
        raise DockerError("docker: the mock does not simulate `docker logs --follow`")
    show_logs(store, store.container_or_fail(rest[0]), options["tail"])
    return 0


@command("wait", "container wait")
def wait(store: Store, words: Words) -> int:
    """`docker wait`."""
    _, rest = command_line.parse("wait", command_line.NONE, words)
    check_count("wait", rest, 1)
    for name in rest:
        record = store.container_or_fail(name)
        while (state := state_of(store, record))["Status"] == "running":
            time.sleep(0.05)
        print_line(str(state["ExitCode"]))
    return 0


@command("cp", "container cp")
def cp(store: Store, words: Words) -> int:
    """`docker cp` between host and container. Raises `DockerError` as docker fails."""
    import shutil

    _, rest = command_line.parse("cp", command_line.COPY, words)
    check_count("cp", rest, 2, 2)
    sides = [_copy_endpoint(store, word) for word in rest]
    source, target = sides[0][1], sides[1][1]
    if sides[0][0] == sides[1][0]:
        raise DockerError(
            "copying between containers is not supported"
            if sides[0][0]
            else "must specify at least one container source"
        )
    if rest[0] == "-" or rest[1] == "-":
        return _copy_tar(source, target, inward=rest[0] == "-")
    if not os.path.lexists(source):
        if sides[0][0]:
            name, _, path = rest[0].partition(":")
            daemon_error(f"Could not find the file {path} in container {name}")
        raise DockerError(f"lstat {rest[0]}: no such file or directory")
    if os.path.isdir(source):
        into = (
            os.path.join(target, os.path.basename(source))
            if os.path.isdir(target) and not rest[0].endswith("/.")
            else target
        )
        shutil.copytree(source, into, symlinks=True, dirs_exist_ok=True)
        return 0
    if not os.path.isdir(os.path.dirname(target)):
        name, _, path = rest[1].partition(":")
        daemon_error(f"Could not find the file {os.path.dirname(path)} in container {name}")
    shutil.copy2(source, target)
    return 0


def _copy_endpoint(store: Store, word: str) -> tuple[bool, str]:
    name, colon, path = word.partition(":")
    if colon and "/" not in name:
        record = store.container_or_fail(name)
        return True, container_program.rootfs_of(store, record) + os.path.normpath("/" + path)
    return False, store.real(word) if word.startswith("/") else word


def _copy_tar(source: str, target: str, *, inward: bool) -> int:
    import tarfile

    if inward:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as archive:
            unpack(archive, target)
    else:
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            archive.add(source, os.path.basename(source))
    return 0
