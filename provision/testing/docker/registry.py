"""Registries as a mock host sees them: every public image exists, private ones want the credential helper."""

from __future__ import annotations

import json
import os

from .store import (
    DockerError,
    Record,
    Store,
    complain,
    daemon_error,
    new_id,
    normal,
    now,
    say,
    which,
)

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any

PUBLIC = ("gcr.io/cos-cloud/", "us.gcr.io/cos-cloud/", "gcr.io/google.com/cloudsdktool/")
DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def domain(ref: str) -> str:
    """The registry host of a reference."""
    first, slash, _ = ref.partition("/")
    return (
        first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"
    )


def wants_login(ref: str) -> bool:
    """True for Artifact Registry and Container Registry, some public folders aside."""
    host = domain(ref)
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
        complain(f"WARNING: Error loading config file: {config_folder(store)}/config.json: {error}")
        return {}


def _authorised(store: Store, ref: str) -> bool:
    config = read_config(store)
    host = domain(ref)
    if host in config.get("auths", {}) and config["auths"][host].get("auth"):
        return True
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if not helper:
        return False
    if which(f"docker-credential-{helper}", os.environ["PATH"]) is None:
        text = f'error getting credentials - err: exec: "docker-credential-{helper}": executable file not found in $PATH, out: ``'
        raise DockerError(text)
    return not store.fault("no_credentials")


def check_access(store: Store, ref: str, verb: str) -> None:
    """Raise the registry's refusal, or return."""
    host = domain(ref)
    name, _, tag = normal(ref).rpartition(":")
    path = name.removeprefix(host + "/")
    if store.fault("pull_no_egress"):
        daemon_error(
            f'Get "https://{host}/v2/": net/http: request canceled while waiting for connection '
            "(Client.Timeout exceeded while awaiting headers)"
        )
    if store.fault("pull_denied") or (wants_login(ref) and not _authorised(store, ref)):
        project, _, rest = path.partition("/")
        what = "uploadArtifacts" if verb == "push" else "downloadArtifacts"
        resource = f"projects/{project}/locations/{host.removesuffix('-docker.pkg.dev')}/repositories/{rest.partition('/')[0]}"
        daemon_error(
            f'Head "https://{host}/v2/{path}/manifests/{tag}": denied: Unauthenticated request. Unauthenticated requests do not have '
            f'permission "artifactregistry.repositories.{what}" on resource "{resource}" (or it may not exist)'
        )


def pull(store: Store, ref: str, *, quiet: bool = False) -> Record:
    """Fetch an image: what its registry would hold is made up from its name, or read from the test's `registry.json`."""
    ref = normal(ref)
    check_access(store, ref, "pull")
    known = _published(store)
    if store.fault("pull_not_found") or (ref in known and known[ref] is None):
        daemon_error(f"manifest for {ref} not found: manifest unknown: manifest unknown")
    config = known.get(ref) or {}
    identity = "sha256:" + new_id("pulled", ref, json.dumps(config, sort_keys=True))
    tag = ref.rsplit(":", 1)[-1]
    old = store.image(identity)
    if not quiet:
        say(f"{tag}: Pulling from {ref.rsplit(':', 1)[0].removeprefix(domain(ref) + '/')}")
        say("" if old else f"{identity[7:19]}: Pull complete")
        say(f"Digest: sha256:{new_id('digest', identity)}")
        say(f"Status: {'Image is up to date' if old else 'Downloaded newer image'} for {ref}")
        say(ref)
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
    """The configuration of a pulled image: a test's own, or what images of that name are known to have."""
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
    """A record without a tag."""
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
    """Move the name `ref` to the image."""
    ref = normal(ref)
    for other in store.all("images"):
        if ref in other["RepoTags"] and other["Id"] != record["Id"]:
            other["RepoTags"].remove(ref)
            store.save("images", other["Id"], other)
    if ref not in record["RepoTags"]:
        record["RepoTags"].append(ref)
    store.save("images", record["Id"], record)


def push(store: Store, ref: str) -> None:
    """Send an image; what was pushed is listed in the mock's state."""
    ref = normal(ref)
    record = store.image(ref)
    if record is None:
        raise DockerError(f"An image does not exist locally with the tag: {ref.rsplit(':', 1)[0]}")
    check_access(store, ref, "push")
    say(f"The push refers to repository [{ref.rsplit(':', 1)[0]}]")
    digest = f"sha256:{new_id('digest', record['Id'])}"
    say(f"{ref.rsplit(':', 1)[-1]}: digest: {digest} size: 1234")
    with open(f"{store.state}/pushed", "a") as file:
        file.write(f"{ref}\t{record['Id']}\n")
    repo_digest = f"{ref.rsplit(':', 1)[0]}@{digest}"
    if repo_digest not in record["RepoDigests"]:
        record["RepoDigests"].append(repo_digest)
        store.save("images", record["Id"], record)


def login(store: Store, host: str, user: str, password: str) -> None:
    """Keep a password in the client's configuration."""
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
    say("Login Succeeded")
