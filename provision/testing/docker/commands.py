"""The commands of the docker stand-in, by name. A command that is not here is not simulated and says so."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

from . import containers, flags, registry
from .build import build
from .go_template import TemplateError, render
from .store import DockerError, Record, Store, complain, daemon_error, normal, say

VERSION = "27.5.1"
Words = list[str]
Command = Callable[[Store, Words], int]
COMMANDS: dict[str, Command] = {}


def command(*names: str) -> Callable[[Command], Command]:
    """Register under every name that Docker knows it by."""

    def register(function: Command) -> Command:
        COMMANDS.update(dict.fromkeys(names, function))
        return function

    return register


def _need(name: str, words: Words, least: int, most: int | None = None) -> None:
    if len(words) < least or (most is not None and len(words) > most):
        count = f"exactly {least}" if least == most else f"at least {least}"
        raise DockerError(f'"docker {name}" requires {count} argument{"s" if least != 1 else ""}.\nSee \'docker {name} --help\'.')


def _format(template: str, data: Any) -> str:
    try:
        return render(template.removeprefix("table "), data)
    except TemplateError as error:
        raise DockerError(str(error)) from error


# --- the engine ------------------------------------------------------------------------------------------------------


@command("version")
def version(store: Store, words: Words) -> int:
    options, _ = flags.parse("version", flags.FORMAT, words)
    side = {"Version": VERSION, "ApiVersion": "1.47", "MinAPIVersion": "1.24", "Os": "linux", "Arch": "amd64", "GoVersion": "go1.23.4"}
    if options["format"]:
        say(_format(options["format"], {"Client": side, "Server": side}))
        return 0
    for name in ("Client:", "Server: Docker Engine - Community\n Engine:"):
        say(f"{name}\n Version:           {VERSION}\n API version:       1.47\n OS/Arch:           linux/amd64\n")
    return 0


@command("info", "system info")
def info(store: Store, words: Words) -> int:
    options, _ = flags.parse("info", flags.FORMAT, words)
    records = store.all("containers")
    running = sum(containers.state_of(store, record)["Running"] for record in records)
    data = {
        **{"ServerVersion": VERSION, "Containers": len(records), "ContainersRunning": running, "Images": len(store.all("images"))},
        **{"Driver": "overlay2", "DockerRootDir": "/var/lib/docker", "OperatingSystem": "Container-Optimized OS from Google"},
        **{"Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}}, "DefaultRuntime": "runc", "CgroupVersion": "2"},
        **{"OSType": "linux", "Architecture": "x86_64", "NCPU": os.cpu_count(), "Name": _read(store.real("/etc/hostname"))},
    }
    say(_format(options["format"], data) if options["format"] else "\n".join(f" {key}: {value}" for key, value in data.items()))
    return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


@command("system df")
def system_df(store: Store, words: Words) -> int:
    options, _ = flags.parse("system df", {"format": (flags.ONE, ""), "verbose": (flags.BOOL, "v")}, words)
    rows = [{"Type": name, "TotalCount": str(len(store.all(kind))), "Size": "0B", "Reclaimable": "0B"} for name, kind in _KINDS]
    for row in rows:
        say(_format(options["format"], row) if options["format"] else f"{row['Type']:<16}{row['TotalCount']:<10}{row['Size']:<10}{row['Reclaimable']}")
    return 0


_KINDS = (("Images", "images"), ("Containers", "containers"), ("Local Volumes", "volumes"))


@command("system prune", "image prune", "container prune", "volume prune", "builder prune")
def prune(store: Store, words: Words) -> int:
    options, _ = flags.parse("prune", flags.PRUNE, words)
    if not options["force"]:
        raise DockerError("docker: the mock prunes with --force only")
    used = set()
    for record in store.all("containers"):
        if containers.state_of(store, record)["Status"] == "running":
            used.add(record["Image"])
        else:
            store.drop("containers", record["Id"])
    for record in store.all("images"):
        if record["Id"] not in used and (options["all"] or not record["RepoTags"]):
            store.drop("images", record["Id"])
    say("Total reclaimed space: 0B")
    return 0


# --- images ----------------------------------------------------------------------------------------------------------


@command("build", "image build")
def build_(store: Store, words: Words) -> int:
    options, rest = flags.parse("build", flags.BUILD, words)
    _need("build", rest, 1, 1)
    build(store, rest[0], options)
    return 0


@command("pull", "image pull")
def pull(store: Store, words: Words) -> int:
    options, rest = flags.parse("pull", flags.PULL, words)
    _need("pull", rest, 1, 1)
    registry.pull(store, rest[0], quiet=options["quiet"])
    if options["quiet"]:
        say(normal(rest[0]))
    return 0


@command("push", "image push")
def push(store: Store, words: Words) -> int:
    _, rest = flags.parse("push", flags.PULL, words)
    _need("push", rest, 1, 1)
    registry.push(store, rest[0])
    return 0


@command("tag", "image tag")
def tag(store: Store, words: Words) -> int:
    _, rest = flags.parse("tag", flags.NONE, words)
    _need("tag", rest, 2, 2)
    registry.tag_image(store, store.image_or_fail(rest[0]), rest[1])
    return 0


@command("login")
def login(store: Store, words: Words) -> int:
    options, rest = flags.parse("login", flags.LOGIN, words)
    if not options["password_stdin"] and options["password"] is None:
        raise DockerError("Error: Cannot perform an interactive login from a non TTY device")
    password = sys.stdin.read().strip() if options["password_stdin"] else options["password"]
    if store.fault("no_credentials"):
        daemon_error(f"Get \"https://{rest[0] if rest else 'docker.io'}/v2/\": denied: authentication failed")
    registry.login(store, rest[0].removeprefix("https://") if rest else "https://index.docker.io/v1/", options["username"] or "", password)
    return 0


@command("images", "image ls", "image list")
def images(store: Store, words: Words) -> int:
    options, rest = flags.parse("images", flags.IMAGES, words)
    if not options["quiet"] and not options["format"]:
        say("REPOSITORY          TAG       IMAGE ID       CREATED   SIZE")
    for record in store.all("images"):
        for name in record["RepoTags"] or ["<none>:<none>"]:
            repository, _, label = name.rpartition(":")
            if rest and rest[0] not in (repository, name):
                continue
            row = {"Repository": repository, "Tag": label, "ID": record["Id"][7:19], "CreatedAt": record["Created"], "Size": "0B"}
            if options["quiet"]:
                say(record["Id"] if options["no_trunc"] else row["ID"])
            else:
                say(_format(options["format"], row) if options["format"] else f"{repository:<20}{label:<10}{row['ID']:<15}now       0B")
    return 0


@command("rmi", "image rm", "image remove")
def rmi(store: Store, words: Words) -> int:
    options, rest = flags.parse("rmi", flags.RMI, words)
    _need("rmi", rest, 1)
    for name in rest:
        record = store.image_or_fail(name)
        user = next((box for box in store.all("containers") if box["Image"] == record["Id"]), None)
        if user is not None and not options["force"]:
            daemon_error(f"conflict: unable to remove repository reference \"{name}\" (must force) - container {user['Id'][:12]} is using its referenced image {record['Id'][7:19]}")
        if normal(name) in record["RepoTags"]:
            record["RepoTags"].remove(normal(name))
            say(f"Untagged: {normal(name)}")
        if record["RepoTags"] and normal(name) != name and not name.startswith("sha256:"):
            store.save("images", record["Id"], record)
            continue
        if not record["RepoTags"]:
            store.drop("images", record["Id"])
            say(f"Deleted: {record['Id']}")
        else:
            store.save("images", record["Id"], record)
    return 0


@command("image inspect")
def image_inspect(store: Store, words: Words) -> int:
    return _inspect(store, words, "image inspect", ("image",))


@command("container inspect")
def container_inspect(store: Store, words: Words) -> int:
    return _inspect(store, words, "container inspect", ("container",))


@command("inspect")
def inspect(store: Store, words: Words) -> int:
    return _inspect(store, words, "inspect", ("container", "image", "volume"))


def _inspect(store: Store, words: Words, name: str, kinds: tuple[str, ...]) -> int:
    options, rest = flags.parse(name, flags.FORMAT, words)
    _need(name, rest, 1)
    found, missing = [], []
    for word in rest:
        record = _look_up(store, word, (options["type"],) if options["type"] else kinds)
        if record is None:
            missing.append(word)
        elif options["format"]:
            say(_format(options["format"], record))
        else:
            found.append(record)
    if not options["format"]:
        import json  # noqa: PLC0415 - rarely needed, and start-up counts

        say(json.dumps(found, indent=4))
    elif missing and not found and len(missing) == len(rest):
        say("")
    for word in missing:
        what = f"No such {kinds[0]}: {word}" if len(kinds) == 1 else f"No such object: {word}"
        complain(f"Error response from daemon: {what}" if len(kinds) == 1 else f"Error: {what}")
    return 1 if missing else 0


def _look_up(store: Store, word: str, kinds: tuple[str, ...]) -> Record | None:
    if "container" in kinds and (record := store.container(word)) is not None:
        containers.state_of(store, record)
        return record
    if "image" in kinds and (record := store.image(word)) is not None:
        return record
    if "volume" in kinds:
        try:
            return store.load("volumes", word)
        except FileNotFoundError:
            return None
    return None


# --- containers ------------------------------------------------------------------------------------------------------


def _new(store: Store, options: dict[str, Any], rest: Words) -> Record:
    options["network"] = options["network"] or options.pop("net")
    return containers.create(store, options, rest[0], rest[1:])


@command("create", "container create")
def create(store: Store, words: Words) -> int:
    options, rest = flags.parse("create", flags.CREATE, words, stop_at_word=True)
    _need("create", rest, 1)
    say(_new(store, options, rest)["Id"])
    return 0


@command("run", "container run")
def run(store: Store, words: Words) -> int:
    options, rest = flags.parse("run", flags.RUN, words, stop_at_word=True)
    _need("run", rest, 1)
    if options["tty"] and not options["detach"]:
        raise DockerError("docker: the mock does not simulate `docker run -t` in the foreground", 125)
    if options["detach"] and options["rm"]:
        raise DockerError("docker: the mock does not simulate `docker run --detach --rm`", 125)
    try:
        with store.lock():
            record = _new(store, options, rest)
            if options["detach"]:
                containers.start(store, record)
                say(record["Id"])
                return 0
    except DockerError as error:
        raise DockerError(f"docker: {error}\nSee 'docker run --help'." if str(error).startswith("Error response") else str(error), max(error.status, 125)) from error
    try:
        return containers.start(store, record, attach=True, interactive=options["interactive"])
    except DockerError as error:
        raise DockerError(f"docker: {error}", max(error.status, 125)) from error
    finally:
        if options["rm"]:
            containers.remove(store, record, force=True, volumes=True)


@command("start", "container start")
def start(store: Store, words: Words) -> int:
    options, rest = flags.parse("start", flags.START, words)
    _need("start", rest, 1)
    status = 0
    for name in rest:
        try:
            with store.lock():
                record = store.container_or_fail(name)
                containers.start(store, record)
            say(name)
        except DockerError as error:
            complain(f"{error}\nError: failed to start containers: {name}")
            status = 1
    return status


@command("stop", "container stop")
def stop(store: Store, words: Words) -> int:
    return _stop(store, words, again=False)


@command("restart", "container restart")
def restart(store: Store, words: Words) -> int:
    return _stop(store, words, again=True)


def _stop(store: Store, words: Words, *, again: bool) -> int:
    options, rest = flags.parse("restart" if again else "stop", flags.STOP, words)
    _need("restart" if again else "stop", rest, 1)
    grace = float(options["time"] or options["timeout"] or 10)
    for name in rest:
        record = store.container_or_fail(name)
        containers.stop(store, record, grace_s=grace)
        if again:
            with store.lock():
                containers.start(store, record)
        say(name)
    return 0


@command("kill", "container kill")
def kill(store: Store, words: Words) -> int:
    options, rest = flags.parse("kill", flags.KILL, words)
    _need("kill", rest, 1)
    for name in rest:
        record = store.container_or_fail(name)
        if containers.state_of(store, record)["Status"] != "running":
            daemon_error(f"cannot kill container: {name}: container {record['Id']} is not running")
        text = (options["signal"] or "KILL").removeprefix("SIG")
        number = int(text) if text.isdigit() else int(signal.Signals[f"SIG{text}"])
        if number == signal.SIGKILL:
            containers.stop(store, record, grace_s=0, number=number)
        else:
            os.kill(record["State"]["Pid"], number)
        say(name)
    return 0


@command("rm", "container rm", "container remove")
def rm(store: Store, words: Words) -> int:
    options, rest = flags.parse("rm", flags.REMOVE, words)
    _need("rm", rest, 1)
    status = 0
    for name in rest:
        record = store.container(name)
        if record is None:
            complain(f"Error response from daemon: No such container: {name}")
            status = status if options["force"] else 1
            continue
        containers.remove(store, record, force=options["force"], volumes=options["volumes"])
        say(name)
    return status


@command("ps", "container ls", "container list")
def ps(store: Store, words: Words) -> int:
    options, _ = flags.parse("ps", flags.PS, words)
    if not options["quiet"] and not options["format"]:
        say("CONTAINER ID   IMAGE     COMMAND   CREATED   STATUS    PORTS     NAMES")
    for record in reversed(store.all("containers")):
        state = containers.state_of(store, record)
        if not (options["all"] or options["filter"] or state["Running"]) or not all(_matches(record, state, word) for word in options["filter"]):
            continue
        if options["filter"] and not options["all"] and not state["Running"] and not any(word.startswith("status=") for word in options["filter"]):
            continue
        status = "Up 1 second" if state["Running"] else ("Created" if state["Status"] == "created" else f"Exited ({state['ExitCode']}) 1 second ago")
        identity = record["Id"] if options["no_trunc"] else record["Id"][:12]
        labels = ",".join(f"{key}={value}" for key, value in record["Config"]["Labels"].items())
        row = {"ID": identity, "Image": record["Config"]["Image"], "Command": f'"{record["Path"]}"', "Status": status, "State": state["Status"], "Names": record["Name"][1:], "Labels": labels, "CreatedAt": record["Created"]}
        if options["quiet"]:
            say(identity)
        else:
            say(_format(options["format"], row) if options["format"] else "   ".join((identity, row["Image"], row["Command"], status, row["Names"])))
    return 0


def _matches(record: Record, state: Record, word: str) -> bool:
    import re  # noqa: PLC0415 - rarely needed, and start-up counts

    key, equals, value = word.partition("=")
    if not equals:
        daemon_error(f"invalid filter '{word}'")
    if key == "name":
        return re.search(value, record["Name"]) is not None or re.search(value, record["Name"][1:]) is not None
    if key == "label":
        name, has_value, wanted = value.partition("=")
        labels = record["Config"]["Labels"]
        return name in labels and (not has_value or labels[name] == wanted)
    if key == "status":
        return bool(state["Status"] == value)
    if key == "ancestor":
        return value in (record["Config"]["Image"], record["Image"]) or normal(value) == normal(record["Config"]["Image"])
    if key == "id":
        return bool(record["Id"].startswith(value))
    daemon_error(f"invalid filter '{key}'")


@command("exec", "container exec")
def exec_(store: Store, words: Words) -> int:
    options, rest = flags.parse("exec", flags.EXEC, words, stop_at_word=True)
    _need("exec", rest, 2)
    return containers.run_in(store, store.container_or_fail(rest[0]), options, rest[1:])


@command("logs", "container logs")
def logs(store: Store, words: Words) -> int:
    options, rest = flags.parse("logs", flags.LOGS, words)
    _need("logs", rest, 1, 1)
    if options["follow"]:
        raise DockerError("docker: the mock does not simulate `docker logs --follow`")
    containers.show_logs(store, store.container_or_fail(rest[0]), options["tail"])
    return 0


@command("wait", "container wait")
def wait(store: Store, words: Words) -> int:
    import time  # noqa: PLC0415

    _, rest = flags.parse("wait", flags.NONE, words)
    _need("wait", rest, 1)
    for name in rest:
        record = store.container_or_fail(name)
        while (state := containers.state_of(store, record))["Status"] == "running":
            time.sleep(0.05)
        say(str(state["ExitCode"]))
    return 0


@command("cp", "container cp")
def cp(store: Store, words: Words) -> int:
    _, rest = flags.parse("cp", flags.COPY, words)
    _need("cp", rest, 2, 2)
    sides = [_side(store, word) for word in rest]
    source, target = sides[0][1], sides[1][1]
    if sides[0][0] == sides[1][0]:
        raise DockerError("copying between containers is not supported" if sides[0][0] else "must specify at least one container source")
    if rest[0] == "-" or rest[1] == "-":
        return _copy_tar(source, target, inward=rest[0] == "-")
    if not os.path.lexists(source):
        daemon_error(f"Could not find the file {rest[0].partition(':')[2]} in container {rest[0].partition(':')[0]}") if sides[0][0] else None
        raise DockerError(f"lstat {rest[0]}: no such file or directory")
    if os.path.isdir(source):
        into = os.path.join(target, os.path.basename(source)) if os.path.isdir(target) and not rest[0].endswith("/.") else target
        shutil.copytree(source, into, symlinks=True, dirs_exist_ok=True)
        return 0
    if not os.path.isdir(os.path.dirname(target)):
        daemon_error(f"Could not find the file {os.path.dirname(rest[1].partition(':')[2])} in container {rest[1].partition(':')[0]}")
    shutil.copy2(source, target)
    return 0


def _side(store: Store, word: str) -> tuple[bool, str]:
    name, colon, path = word.partition(":")
    if colon and "/" not in name:
        record = store.container_or_fail(name)
        return True, containers.rootfs_of(store, record) + os.path.normpath("/" + path)
    return False, store.real(word) if word.startswith("/") else word


def _copy_tar(source: str, target: str, *, inward: bool) -> int:
    import tarfile  # noqa: PLC0415 - rarely needed, and start-up counts

    if inward:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as archive:
            archive.extractall(target, filter="data")
    else:
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            archive.add(source, os.path.basename(source))
    return 0


# --- volumes ---------------------------------------------------------------------------------------------------------


@command("volume create")
def volume_create(store: Store, words: Words) -> int:
    options, rest = flags.parse("volume create", flags.VOLUME_CREATE, words)
    name = rest[0] if rest else options["name"]
    if not name:
        raise DockerError("docker: the mock makes volumes with a name only")
    containers.make_volume(store, name, dict(word.partition("=")[::2] for word in options["label"]))
    say(name)
    return 0


@command("volume inspect")
def volume_inspect(store: Store, words: Words) -> int:
    options, rest = flags.parse("volume inspect", flags.FORMAT, words)
    _need("volume inspect", rest, 1)
    for name in rest:
        record = _look_up(store, name, ("volume",))
        if record is None:
            daemon_error(f"get {name}: no such volume")
        say(_format(options["format"] or "{{json .}}", record))
    return 0


@command("volume ls", "volume list")
def volume_ls(store: Store, words: Words) -> int:
    options, _ = flags.parse("volume ls", flags.PS, words)
    if not options["quiet"] and not options["format"]:
        say("DRIVER    VOLUME NAME")
    for record in store.all("volumes"):
        say(record["Name"] if options["quiet"] else _format(options["format"] or "{{.Driver}}     {{.Name}}", record))
    return 0


@command("volume rm", "volume remove")
def volume_rm(store: Store, words: Words) -> int:
    options, rest = flags.parse("volume rm", flags.RMI, words)
    _need("volume rm", rest, 1)
    for name in rest:
        user = next((box for box in store.all("containers") if any(mount.get("Name") == name for mount in box["Mounts"])), None)
        if user is not None:
            daemon_error(f"remove {name}: volume is in use - [{user['Id']}]")
        if _look_up(store, name, ("volume",)) is None and not options["force"]:
            daemon_error(f"get {name}: no such volume")
        store.drop("volumes", name)
        say(name)
    return 0


@command("_boot")
def boot(store: Store, words: Words) -> int:
    """Not Docker's: what the daemon does when the machine starts."""
    del words
    with store.lock():
        containers.boot(store)
    return 0
