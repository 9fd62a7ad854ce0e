"""Registries: every public image exists, private ones need the credential helper."""

from __future__ import annotations

import json
import os

from .store import (
    DockerError,
    Record,
    Store,
    daemon_error,
    new_id,
    now,
    print_error,
    print_line,
    which,
    with_tag,
)

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any

PUBLIC = ("gcr.io/cos-cloud/", "us.gcr.io/cos-cloud/", "gcr.io/google.com/cloudsdktool/")
DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def registry_host(ref: str) -> str:
    """The registry host of a reference."""
    first, slash, _ = ref.partition("/")
    return (
        first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"
    )


def needs_login(ref: str) -> bool:
    """True for Artifact Registry and Container Registry, except for public folders."""
    host = registry_host(ref)
    return (host == "gcr.io" or host.endswith((".pkg.dev", ".gcr.io"))) and not ref.startswith(
        PUBLIC
    )


def config_folder(store: Store) -> str:
    """The client's configuration: DOCKER_CONFIG, else ~/.docker."""
    return (
        os.environ.get("DOCKER_CONFIG") or os.environ.get("HOME", f"{store.root}/root") + "/.docker"
    )


def read_config(store: Store) -> dict[str, Any]:
    """The client's config.json; empty when there is none."""
    try:
        with open(store.real(config_folder(store)) + "/config.json") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        print_error(
            f"WARNING: Error loading config file: {config_folder(store)}/config.json: {error}"
        )
        return {}


def _authorised(store: Store, ref: str) -> bool:
    config = read_config(store)
    host = registry_host(ref)
    if host in config.get("auths", {}) and config["auths"][host].get("auth"):
        return True
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if not helper:
        return False
    if which(f"docker-credential-{helper}", os.environ["PATH"]) is None:
        raise DockerError(
            f'error getting credentials - err: exec: "docker-credential-{helper}": '
            "executable file not found in $PATH, out: ``"
        )
    return not store.fault("no_credentials")


def check_access(store: Store, ref: str, verb: str) -> None:
    """Raise `DockerError` when the registry refuses access."""
    host = registry_host(ref)
    name, _, tag = with_tag(ref).rpartition(":")
    path = name.removeprefix(host + "/")
    if store.fault("pull_no_egress"):
        daemon_error(
            f'Get "https://{host}/v2/": net/http: request canceled while waiting for connection '
            "(Client.Timeout exceeded while awaiting headers)"
        )
    if store.fault("pull_denied") or (needs_login(ref) and not _authorised(store, ref)):
        project, _, rest = path.partition("/")
        what = "uploadArtifacts" if verb == "push" else "downloadArtifacts"
        location, repository = host.removesuffix("-docker.pkg.dev"), rest.partition("/")[0]
        resource = f"projects/{project}/locations/{location}/repositories/{repository}"
        daemon_error(
            f'Head "https://{host}/v2/{path}/manifests/{tag}": denied: Unauthenticated request. '
            "Unauthenticated requests do not have permission "
            f'"artifactregistry.repositories.{what}" on resource "{resource}" (or it may not exist)'
        )


def pull(store: Store, ref: str, *, quiet: bool = False) -> Record:
    """Pull an image, invented from its name or read from the test's `registry.json`.

    Raises `DockerError` in the registry's words.
    """
    ref = with_tag(ref)
    check_access(store, ref, "pull")
    known = _published(store)
    if store.fault("pull_not_found") or (ref in known and known[ref] is None):
        daemon_error(f"manifest for {ref} not found: manifest unknown: manifest unknown")
    config = known.get(ref) or {}
    identity = "sha256:" + new_id("pulled", ref, json.dumps(config, sort_keys=True))
    tag = ref.rsplit(":", 1)[-1]
    old = store.image(identity)
    if not quiet:
        print_line(
            f"{tag}: Pulling from {ref.rsplit(':', 1)[0].removeprefix(registry_host(ref) + '/')}"
        )
        print_line("" if old else f"{identity[7:19]}: Pull complete")
        print_line(f"Digest: sha256:{new_id('digest', identity)}")
        print_line(
            f"Status: {'Image is up to date' if old else 'Downloaded newer image'} for {ref}"
        )
        print_line(ref)
    if old is not None and ref in old["RepoTags"]:
        return old
    record = old or new_image(identity, config_of(ref, config))
    tag_image(store, record, ref)
    return record


def _published(store: Store) -> dict[str, Any]:
    try:
        with open(f"{store.state}/registry.json") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}


def config_of(ref: str, given: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a pulled image: `given`, over what images of that name have."""
    config: dict[str, Any] = {
        "Env": [DEFAULT_PATH],
        "Cmd": ["bash"],
        "Entrypoint": None,
        "Labels": {},
        "WorkingDir": "",
        "User": "",
    }
    if "beam_python" in ref:
        config.update(Entrypoint=["/opt/apache/beam/boot"], Cmd=None)
    if "nvidia/cuda" in ref:
        config["Env"] = [
            DEFAULT_PATH.replace("=", "=/usr/local/nvidia/bin:/usr/local/cuda/bin:"),
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        ]
    config.update(given)
    return config


def new_image(identity: str, config: dict[str, Any]) -> Record:
    """An image record without a tag."""
    return {
        "Id": identity,
        "RepoTags": [],
        "RepoDigests": [],
        "Created": now(),
        "Os": "linux",
        "Architecture": "amd64",
        "Size": 0,
        "Config": config,
    }


def tag_image(store: Store, record: Record, ref: str) -> None:
    """Give the tag `ref` to the image."""
    ref = with_tag(ref)
    for other in store.all("images"):
        if ref in other["RepoTags"] and other["Id"] != record["Id"]:
            other["RepoTags"].remove(ref)
            store.save("images", other["Id"], other)
    if ref not in record["RepoTags"]:
        record["RepoTags"].append(ref)
    store.save("images", record["Id"], record)


def push(store: Store, ref: str) -> None:
    """Push an image: append it to `pushed` in the mock's state. Raises `DockerError`."""
    ref = with_tag(ref)
    record = store.image(ref)
    if record is None:
        raise DockerError(f"An image does not exist locally with the tag: {ref.rsplit(':', 1)[0]}")
    check_access(store, ref, "push")
    print_line(f"The push refers to repository [{ref.rsplit(':', 1)[0]}]")
    digest = f"sha256:{new_id('digest', record['Id'])}"
    print_line(f"{ref.rsplit(':', 1)[-1]}: digest: {digest} size: 1234")
    with open(f"{store.state}/pushed", "a") as file:
        file.write(f"{ref}\t{record['Id']}\n")
    repo_digest = f"{ref.rsplit(':', 1)[0]}@{digest}"
    if repo_digest not in record["RepoDigests"]:
        record["RepoDigests"].append(repo_digest)
        store.save("images", record["Id"], record)


def login(store: Store, host: str, user: str, password: str) -> None:
    """Save a password in the client's configuration. Raises `DockerError` below /root."""
    import base64

    folder = config_folder(store)
    if store.host_path(folder).startswith("/root"):
        raise DockerError("Error saving credentials: mkdir /root/.docker: read-only file system")
    config = read_config(store)
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    config.setdefault("auths", {})[host] = {"auth": token}
    os.makedirs(store.real(folder), mode=0o700, exist_ok=True)
    with open(store.real(folder) + "/config.json", "w") as file:
        json.dump(config, file)
    print_line("Login Succeeded")
