"""The Docker Engine of the host, registry login, images and the worker container. Pure.

Sources: Google, "Run GPU workloads on Container-Optimized OS" (driver volumes and device nodes instead of
`--privileged`), "Running containers on instances" (/root is read-only, so Docker's configuration lives elsewhere),
the docker-credential-gcr README (`--registries`), Docker's CLI reference.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.errors import ProbeUnreadable
from provision.model import Facts, State
from provision.resource import Diagnosis, Resource
from provision.resources.file import remember_disk_full
from provision.resources.gpu import DRIVER_DIR
from provision.shell import Argument, RemotePath, Script, fields, join, payload, quote, script

DOCKER_CONFIG = RemotePath("/var/lib/provision/docker")
WORKSPACE = "/workspace"
NOFILE = "16384:16384"
"""Open files of the container: NVIDIA recommends at least 16384 for MPS; more is refused without CAP_SYS_RESOURCE."""


@dataclass(frozen=True, kw_only=True)
class DockerEngine(Resource):
    """The Docker daemon answers."""

    wait_s: int = 60

    def probe(self) -> Script:
        """Ask it for its version."""
        return script("echo \"version=$(docker version --format '{{.Server.Version}}' 2>/dev/null)\"")

    def read(self, text: str) -> State | None:
        """`{"running", "version"}`."""
        version = fields(text).get("version", "").strip()
        return {"running": bool(version), "version": version or None}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"running": True}`."""
        return {"running": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Start the service and wait until it answers."""
        return script(
            """
command -v docker >/dev/null || { echo "docker: not found"; exit 127; }
systemctl start docker
waited=0
until docker version --format '{{.Server.Version}}' 2>/dev/null; do
    test "$waited" -lt "$wait" || { docker version; exit 1; }
    waited=$((waited + 1))
    sleep 1
done
""",
            wait=self.wait_s,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """No Docker at all, or one that does not start."""
        if re.search(r"docker: (command )?not found|not found: docker", output):
            return Diagnosis("this host has no Docker", "install Docker Engine on the host (Container-Optimized OS brings it)")
        return Diagnosis("the Docker daemon does not answer", "sudo journalctl -u docker -n 50   (on the host)")


@dataclass(frozen=True, kw_only=True)
class RegistryLogin(Resource):
    """Docker asks `docker-credential-gcr` for the credentials of these registry hosts.

    The configuration lies in a folder of our own (`DOCKER_CONFIG`): under sudo the default is /root, which is
    read-only on Container-Optimized OS. Hosts without the helper (not Container-Optimized OS) are left alone.
    """

    registries: tuple[str, ...]

    def probe(self) -> Script:
        """Docker's configuration file."""
        return script('test ! -r "$config/config.json" || cat "$config/config.json"', config=DOCKER_CONFIG)

    def read(self, text: str) -> State | None:
        """`{registry: helper}`."""
        if not text.strip():
            return {}
        try:
            helpers = json.loads(text).get("credHelpers") or {}
            return {str(host): str(helper) for host, helper in helpers.items()}
        except (ValueError, AttributeError) as error:
            file = f"{DOCKER_CONFIG}/config.json"
            fix = f"sudo rm {file}   (on the host)"
            raise ProbeUnreadable("the configuration is not what Docker writes", where=file, why=str(error), fix=fix) from error

    def desired(self, facts: Facts) -> State:
        """`gcr` for every registry, where the helper is part of the OS."""
        return dict.fromkeys(self.registries, "gcr") if facts.is_cos else {}

    def ensure(self, facts: Facts) -> Script | None:
        """`configure-docker` for exactly these hosts; nothing where there is no helper, at a boot neither."""
        if not facts.is_cos:
            return None
        return script(
            """
mkdir -p "$config"
chmod 0700 "$config"
DOCKER_CONFIG=$config docker-credential-gcr configure-docker --overwrite "--registries=$registries"
""",
            config=DOCKER_CONFIG,
            registries=",".join(self.registries),
        )


# Hosts without the credential helper keep the login that root has there.
_PULL = """
if test -r "$config/config.json"; then export DOCKER_CONFIG="$config"; fi
docker pull "$ref"
"""
_BUILD = """
if test -r "$config/config.json"; then export DOCKER_CONFIG="$config"; fi
printf '%s' "$context" | base64 -d | docker build --tag "$ref" --label "provision.context=$digest" -
"""


def _pull_diagnosis(output: str) -> Diagnosis | None:
    if re.search(r"(?i)manifest unknown|not found: manifest|manifest for .* not found|repository does not exist", output):
        return Diagnosis("the registry has no such image", "check worker.image or worker.base_image: name, tag and registry")
    if re.search(r"(?i)unauthori[sz]ed|denied|unauthenticated|no basic auth credentials", output):
        return Diagnosis(
            "the registry refused the VM's identity", "add its host to registries:, and grant its service account Artifact Registry Reader"
        )
    if re.search(r"(?i)Client\.Timeout|i/o timeout|no such host|connection refused|TLS handshake timeout", output):
        return Diagnosis(
            "the registry could not be reached from the host", "give the VM an external IP, Cloud NAT or Private Google Access"
        )
    return remember_disk_full(output)


@dataclass(frozen=True, kw_only=True)
class PulledImage(Resource):
    """An existing image, pulled through the credential helper. It is pulled where it is missing, not where a tag moved."""

    ref: str
    timeout_s: float = 1800.0

    def probe(self) -> Script:
        """Its id, where the host has it."""
        return script('echo "id=$(docker image inspect -f \'{{.Id}}\' "$ref" 2>/dev/null)"', ref=self.ref)

    def read(self, text: str) -> State | None:
        """`{"present", "id"}`; None when absent."""
        image = fields(text).get("id", "").strip()
        return {"present": True, "id": image} if image else None

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"present": True}`."""
        return {"present": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """`docker pull` with our configuration."""
        return script(_PULL, config=DOCKER_CONFIG, ref=self.ref)

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """Wrong name, no permission, no way to the registry, full disk."""
        return _pull_diagnosis(output)


@dataclass(frozen=True, kw_only=True)
class BuiltImage(Resource):
    """An image built on the host from a context (a gzipped tar) that travels inside the script."""

    ref: str
    context: bytes = field(repr=False)
    digest: str
    timeout_s: float = 3600.0

    def probe(self) -> Script:
        """The digest of the context it was built from, kept as a label."""
        return script(
            'echo "context=$(docker image inspect -f \'{{index .Config.Labels "provision.context"}}\' "$ref" 2>/dev/null)"', ref=self.ref
        )

    def read(self, text: str) -> State | None:
        """`{"context"}`; None when there is no such image."""
        digest = fields(text).get("context", "").strip()
        return {"context": digest} if digest else None

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"context": digest}`."""
        return {"context": self.digest}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """`docker build` from standard input."""
        return script(
            _BUILD,
            config=DOCKER_CONFIG,
            ref=self.ref,
            context=payload(self.context),
            digest=self.digest,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """A base image that cannot be had, or a full disk; otherwise the build's own last lines say it."""
        return _pull_diagnosis(output)


_CONTAINER_PROBE = """
labels='{{index .Config.Labels "provision.spec"}}|{{index .Config.Labels "provision.driver"}}'
docker container inspect -f "{{.State.Running}}|{{.Image}}|$labels" "$name" 2>/dev/null || exit 0
echo "image=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null)"
loaded=
if test -r "$R/sys/module/nvidia/version"; then read -r loaded <"$R/sys/module/nvidia/version"; fi
echo "driver=$loaded"
"""

# A container whose specification, image and driver are current is only started (after a boot), or restarted when the
# driver's mount changed under it: it keeps the mount options of its start. Anything else is recreated.
_CONTAINER_ENSURE = """
loaded=
if test -r "$R/sys/module/nvidia/version"; then read -r loaded <"$R/sys/module/nvidia/version"; fi
id=$(docker image inspect -f '{{.Id}}' "$image")
labels='{{index .Config.Labels "provision.spec"}}|{{index .Config.Labels "provision.driver"}}'
found=$(docker container inspect -f "{{.Image}}|$labels" "$name" 2>/dev/null || true)
if test "$found" = "$id|$spec|$loaded"; then
    if test -n "${because-}"; then docker restart --time 10 "$name"; else docker start "$name"; fi
    exit 0
fi
case $found in
    '') ;;
    *'||'*) echo "a container of this name exists and was not made by provision: $name"; exit 77 ;;
    *) docker rm --force "$name" ;;
esac
environment=$(docker image inspect -f '{{range .Config.Env}}{{println .}}{{end}}' "$image")
path=$(printf '%s\\n' "$environment" | sed -n 's/^PATH=//p' | tail -n 1)
libraries=$(printf '%s\\n' "$environment" | sed -n 's/^LD_LIBRARY_PATH=//p' | tail -n 1)
path=${path:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
case :$path: in *:/usr/local/nvidia/bin:*) ;; *) path=/usr/local/nvidia/bin:$path ;; esac
case :$libraries: in *:/usr/local/nvidia/lib64:*) ;; *) libraries=/usr/local/nvidia/lib64${libraries:+:$libraries} ;; esac
set -- --env "PATH=$path" --env "LD_LIBRARY_PATH=$libraries" "$@"
if test -n "$devices"; then
    for node in "$R"/dev/nvidia[0-9]* "$R"/dev/nvidiactl "$R"/dev/nvidia-uvm "$R"/dev/nvidia-uvm-tools; do
        test ! -e "$node" || set -- --device "$node:${node#"$R"}" "$@"
    done
fi
docker run --detach --name "$name" --label "provision.spec=$spec" --label "provision.driver=$loaded" "$@" "$image" infinity
"""


def foreign_container(name: str) -> Diagnosis:
    """Somebody else's container has the name; it is never touched."""
    return Diagnosis(f"a container named {name} exists that is not ours", "set worker.name to another name")


@dataclass(frozen=True, kw_only=True)
class Container(Resource):
    """The worker container: driver volumes, device nodes, shared memory, MPS directories, an idle main process.

    ENTRYPOINT is overridden (`sleep infinity` under `--init`), so that programs are run in it at will. Restart
    policy `no`: a container that Docker restarts before its device nodes exist stays dead, the boot script starts it.
    """

    container: str
    image: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    volumes: tuple[str, ...] = ()
    shm_size: str = "1g"
    privileged: bool = False
    gpu: bool = True
    processes: int | None = None
    driver_dir: str = DRIVER_DIR.path
    timeout_s: float = 180.0

    @property
    def work_volume(self) -> str:
        """The Docker volume that holds the user's code; unlike a folder of /var it is executable."""
        return f"{self.container}-workspace"

    def environment(self, facts: Facts) -> dict[str, str]:
        """What every process in the container sees, user's values last.

        OpenMP threads per worker are max(1, cores / processes): several processes with a thread per core each were
        measured up to 64 times slower (docs/facts.md).
        """
        threads = str(max(1, facts.cpus // (self.processes or facts.cpus or 1)))
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        return {"TF_FORCE_GPU_ALLOW_GROWTH": "true", **dict.fromkeys(names, threads), **self.env}

    def arguments(self, facts: Facts) -> list[Argument]:
        """The options of `docker run`, devices aside."""
        words: list[Argument] = ["--init", "--restart", "no", "--network", "host", "--entrypoint", "sleep"]
        words += ["--shm-size", self.shm_size, "--ulimit", f"nofile={NOFILE}", "--workdir", WORKSPACE]
        words += ["--volume", f"{self.work_volume}:{WORKSPACE}"]
        if self.gpu:
            driver = RemotePath(self.driver_dir)
            words += ["--volume", join(driver / "lib64", ":/usr/local/nvidia/lib64:ro")]
            words += ["--volume", join(driver / "bin", ":/usr/local/nvidia/bin:ro")]
        for volume in self.volumes:
            source, _, target = volume.partition(":")
            words += ["--volume", join(RemotePath(source), f":{target}") if source.startswith("/") else volume]
        for name, value in sorted(self.environment(facts).items()):
            words += ["--env", f"{name}={value}"]
        if self.privileged:
            words.append("--privileged")
        return words

    def spec(self, facts: Facts) -> str:
        """A digest of everything the container is started with, kept as its label."""
        text = " ".join(quote(word) for word in [self.image, "devices" if self.gpu else "", *self.arguments(facts)])
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def probe(self) -> Script:
        """Running, its image, its labels; the current image of that name; the loaded driver."""
        return script(_CONTAINER_PROBE, name=self.container, image=self.image)

    def read(self, text: str) -> State | None:
        """`{"running", "spec", "image", "driver"}`, the last two `current` or `stale`; None without a container."""
        if not text.strip():
            return None
        head, _, rest = text.partition("\n")
        running, image, spec, driver = head.split("|")
        now = fields(rest)
        current = {True: "current", False: "stale"}
        return {
            "running": running == "true",
            "spec": spec,
            "image": current[image == now.get("image", "").strip()],
            "driver": current[driver == now.get("driver", "").strip()],
        }

    def desired(self, facts: Facts) -> State:
        """Running, as specified, from the current image, with the current driver."""
        return {"running": True, "spec": self.spec(facts), "image": "current", "driver": "current"}

    def ensure(self, facts: Facts) -> Script | None:
        """Start it, or recreate it where anything of it is stale."""
        return script(
            _CONTAINER_ENSURE,
            argv=self.arguments(facts),
            name=self.container,
            image=self.image,
            spec=self.spec(facts),
            devices="yes" if self.gpu and not self.privileged else "",
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """No `sleep` in the image, no device nodes, full disk."""
        if "was not made by provision" in output:
            return foreign_container(self.container)
        if "error gathering device information" in output:
            return Diagnosis("the driver's device nodes are gone", "invoke vm.provision")
        if re.search(r'exec: "sleep"|"sleep": executable file not found', output):
            return Diagnosis("the image has no `sleep` to stay alive with", "base worker.image on a distribution with coreutils or busybox")
        return remember_disk_full(output)


@dataclass(frozen=True, kw_only=True)
class NoContainer(Resource):
    """The worker container is gone. One of that name that is not ours is left alone."""

    container: str

    def probe(self) -> Script:
        """Its id and our label, where it exists."""
        text = '{{.Id}}|{{index .Config.Labels "provision.spec"}}'
        return script('docker container inspect -f "$format" "$name" 2>/dev/null || true', name=self.container, format=text)

    def read(self, text: str) -> State | None:
        """`{"id"}`; None when there is none of ours."""
        identity, _, spec = text.strip().partition("|")
        return {"id": identity} if spec else None

    def desired(self, facts: Facts) -> State | None:  # noqa: ARG002
        """Absent."""
        return None

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Stop it, so that programs may end, then remove it. The workspace volume is kept."""
        return script('docker stop --time 10 "$name"\ndocker rm --force "$name"', name=self.container)
