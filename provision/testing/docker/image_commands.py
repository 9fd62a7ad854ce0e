"""Commands about images and registries."""

from __future__ import annotations

import sys

from . import command_line, registry
from .command_table import Words, apply_format, check_count, command
from .store import DockerError, Store, daemon_error, print_line, with_tag


@command("build", "image build")
def build_(store: Store, words: Words) -> int:
    """`docker build`."""
    options, rest = command_line.parse("build", command_line.BUILD, words)
    check_count("build", rest, 1, 1)
    from .build import build  # only here: what it needs takes a third of the start-up

    build(store, rest[0], options)
    return 0


@command("pull", "image pull")
def pull(store: Store, words: Words) -> int:
    """`docker pull`."""
    options, rest = command_line.parse("pull", command_line.PULL, words)
    check_count("pull", rest, 1, 1)
    registry.pull(store, rest[0], quiet=options["quiet"])
    if options["quiet"]:
        print_line(with_tag(rest[0]))
    return 0


@command("push", "image push")
def push(store: Store, words: Words) -> int:
    """`docker push`."""
    _, rest = command_line.parse("push", command_line.PULL, words)
    check_count("push", rest, 1, 1)
    registry.push(store, rest[0])
    return 0


@command("tag", "image tag")
def tag(store: Store, words: Words) -> int:
    """`docker tag`."""
    _, rest = command_line.parse("tag", command_line.NONE, words)
    check_count("tag", rest, 2, 2)
    registry.tag_image(store, store.image_or_fail(rest[0]), rest[1])
    return 0


@command("login")
def login(store: Store, words: Words) -> int:
    """`docker login`. Raises `DockerError` without a password."""
    options, rest = command_line.parse("login", command_line.LOGIN, words)
    if not options["password_stdin"] and options["password"] is None:
        raise DockerError("Error: Cannot perform an interactive login from a non TTY device")
    password = sys.stdin.read().strip() if options["password_stdin"] else options["password"]
    if store.fault("no_credentials"):
        daemon_error(
            f'Get "https://{rest[0] if rest else "docker.io"}/v2/": denied: authentication failed'
        )
    registry.login(
        store,
        rest[0].removeprefix("https://") if rest else "https://index.docker.io/v1/",
        options["username"] or "",
        password,
    )
    return 0


@command("images", "image ls", "image list")
def images(store: Store, words: Words) -> int:
    """`docker images`."""
    options, rest = command_line.parse("images", command_line.IMAGES, words)
    if not options["quiet"] and not options["format"]:
        print_line("REPOSITORY          TAG       IMAGE ID       CREATED   SIZE")
    for record in store.all("images"):
        for name in record["RepoTags"] or ["<none>:<none>"]:
            repository, _, label = name.rpartition(":")
            if rest and rest[0] not in (repository, name):
                continue
            row = {
                "Repository": repository,
                "Tag": label,
                "ID": record["Id"][7:19],
                "CreatedAt": record["Created"],
                "Size": "0B",
            }
            if options["quiet"]:
                print_line(record["Id"] if options["no_trunc"] else row["ID"])
            else:
                print_line(
                    apply_format(options["format"], row)
                    if options["format"]
                    else f"{repository:<20}{label:<10}{row['ID']:<15}now       0B"
                )
    return 0


@command("rmi", "image rm", "image remove")
def rmi(store: Store, words: Words) -> int:
    """`docker rmi`."""
    options, rest = command_line.parse("rmi", command_line.RMI, words)
    check_count("rmi", rest, 1)
    for name in rest:
        record = store.image_or_fail(name)
        user = next(
            (
                container
                for container in store.all("containers")
                if container["Image"] == record["Id"]
            ),
            None,
        )
        if user is not None and not options["force"]:
            daemon_error(
                f'conflict: unable to remove repository reference "{name}" (must force) - '
                f"container {user['Id'][:12]} is using its referenced image {record['Id'][7:19]}"
            )
        if with_tag(name) in record["RepoTags"]:
            record["RepoTags"].remove(with_tag(name))
            print_line(f"Untagged: {with_tag(name)}")
        if record["RepoTags"] and with_tag(name) != name and not name.startswith("sha256:"):
            store.save("images", record["Id"], record)
            continue
        if not record["RepoTags"]:
            store.drop("images", record["Id"])
            print_line(f"Deleted: {record['Id']}")
        else:
            store.save("images", record["Id"], record)
    return 0
