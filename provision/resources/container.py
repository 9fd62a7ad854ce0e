"""The worker container, the ones beside it, and their absence. Pure.

Sources: Google, "Run GPU workloads on Container-Optimized OS" (driver volumes and device nodes
instead of `--privileged`), Docker's CLI reference.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Argument, RemotePath, Script, fields, join, quote, script
from provision.resources.driver import DRIVER_DIR
from provision.resources.file import remember_disk_full

WORKSPACE = "/workspace"
NOFILE = "16384:16384"
"""Open files of the container: NVIDIA recommends at least 16384 for MPS; more is refused without
CAP_SYS_RESOURCE."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What the libraries under the frameworks read to know how many threads they may have."""

# What a container was made from, as its labels tell. The driver is what a container found of it
# when it started: the loaded version, how its folder is mounted, and which folder it is (its
# inode), since the installer makes the folders anew. So a run that was cut between a new driver and
# the container is made up for by the next one.
_LABELS = '{{index .Config.Labels "provision.spec"}}|{{index .Config.Labels "provision.driver"}}|{{index .Config.Labels "provision.joined"}}'
_PROBE = """
names=$name
test -z "$siblings" || names=$(docker ps --all --filter "label=provision.sibling=$name" --format '{{.Names}}' 2>/dev/null || true)
test -n "$names" || exit 0
format="{{.State.Running}}|{{.Image}}|$labels"
found=$(printf '%s\\n' "$names" | xargs docker container inspect -f "$format" 2>/dev/null || true)
test -n "$found" || exit 0
printf '%s\\n' "$found"
echo "image=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null)"
loaded=
if test -r "$R/sys/module/nvidia/version"; then read -r loaded <"$R/sys/module/nvidia/version"; fi
if test -n "$folder"; then
    case ,$(findmnt -rno OPTIONS -M "$folder" 2>/dev/null | tail -n 1), in
        ,,) mount='none' ;;
        *,noexec,*) mount='noexec' ;;
        *) mount='exec' ;;
    esac
    loaded=$loaded/$mount:$(stat -c %i "$folder/lib64" 2>/dev/null || true)
fi
echo "driver=$loaded"
test -z "$joins" || echo "owner=$(docker container inspect -f '{{.Id}}' "$joins" 2>/dev/null)"
"""

# A container whose specification, image and driver are current is only started (after a boot), or
# restarted when the driver was made anew under it. Anything else is recreated, and so is one that
# joined the namespaces of a container that was replaced.
_ENSURE = """
if test -n "$siblings"; then
    for box in $(docker ps --all --filter "label=provision.sibling=$name" --format '{{.Names}}'); do
        number=${box#"$name-"}
        case $number in '' | *[!0-9]*) continue ;; esac
        test "$number" -le "$siblings" || docker rm --force "$box"
    done
    test "$siblings" -gt 1 || exit 0
fi
loaded=
if test -r "$R/sys/module/nvidia/version"; then read -r loaded <"$R/sys/module/nvidia/version"; fi
if test -n "$folder"; then
    case ,$(findmnt -rno OPTIONS -M "$folder" 2>/dev/null | tail -n 1), in
        ,,) mount='none' ;;
        *,noexec,*) mount='noexec' ;;
        *) mount='exec' ;;
    esac
    loaded=$loaded/$mount:$(stat -c %i "$folder/lib64" 2>/dev/null || true)
fi
id=$(docker image inspect -f '{{.Id}}' "$image")
owner=
test -z "$joins" || owner=$(docker container inspect -f '{{.Id}}' "$joins")
environment=$(docker image inspect -f '{{range .Config.Env}}{{println .}}{{end}}' "$image")
path=$(printf '%s\\n' "$environment" | sed -n 's/^PATH=//p' | tail -n 1)
libraries=$(printf '%s\\n' "$environment" | sed -n 's/^LD_LIBRARY_PATH=//p' | tail -n 1)
path=${path:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
case $path: in /usr/local/nvidia/bin:*) ;; *) path=/usr/local/nvidia/bin:$path ;; esac
case $libraries: in /usr/local/nvidia/lib64:*) ;; *) libraries=/usr/local/nvidia/lib64${libraries:+:$libraries} ;; esac
set -- --env "PATH=$path" --env "LD_LIBRARY_PATH=$libraries" "$@"
if test -n "$devices"; then
    for node in "$R"/dev/nvidia[0-9]* "$R"/dev/nvidiactl "$R"/dev/nvidia-uvm "$R"/dev/nvidia-uvm-tools; do
        test ! -e "$node" || set -- --device "$node:${node#"$R"}" "$@"
    done
fi
settle() {
    box=$1
    shift
    found=$(docker container inspect -f "{{.Image}}|$labels" "$box" 2>/dev/null || true)
    if test "$found" = "$id|$spec|$loaded|$owner"; then
        if test -n "${because-}"; then docker restart --time 10 "$box"; else docker start "$box"; fi
        return 0
    fi
    case $found in
        '') ;;
        "${found%%|*}||"*) echo "a container of this name exists and was not made by provision: $box"; exit 77 ;;
        *) docker rm --force "$box" ;;
    esac
    docker run --detach --name "$box" --label "provision.spec=$spec" --label "provision.driver=$loaded" \\
        --label "provision.joined=$owner" "$@" "$image" infinity
}
if test -z "$siblings"; then
    settle "$name" "$@"
    exit 0
fi
number=2
while test "$number" -le "$siblings"; do
    settle "$name-$number" --label "provision.sibling=$name" "$@"
    number=$((number + 1))
done
"""


def foreign_container(name: str) -> Diagnosis:
    """Somebody else's container has the name; it is never touched."""
    return Diagnosis(
        f"a container named {name} exists that is not ours", "set worker.name to another name"
    )


@dataclass(frozen=True, kw_only=True)
class Container(Resource):
    """The worker container: driver volumes, device nodes, shared memory, MPS directories, an idle main process.

    ENTRYPOINT is overridden (`sleep infinity` under `--init`), so that programs are run in it at
    will. Restart policy `no`: a container that Docker restarts before its device nodes exist stays
    dead, the boot script starts it. With `joins` it lives in the PID and IPC namespaces of that
    container, which `shares` them: else the MPS daemon there lists its programs as PID 0 and
    command `?` (measured: docs/facts.md).
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
    joins: str = ""
    shares: bool = False
    timeout_s: float = 180.0

    @property
    def work_volume(self) -> str:
        """The Docker volume that holds the user's code; unlike a folder of /var it is executable."""
        return f"{self.container}-workspace"

    @property
    def folder(self) -> Argument:
        """The driver's folder on the host; empty without a GPU."""
        return RemotePath(self.driver_dir) if self.gpu else ""

    def environment(self, facts: Facts) -> dict[str, str]:
        """What every process in the container sees, user's values last.

        OpenMP threads per worker are max(1, cores / processes): several processes with a thread per
        core each were measured up to 64 times slower (docs/facts.md).
        """
        threads = str(max(1, facts.cpus // (self.processes or facts.cpus or 1)))
        return {
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            **dict.fromkeys(THREAD_VARIABLES, threads),
            **self.env,
        }

    def arguments(self, facts: Facts) -> list[Argument]:
        """The options of `docker run`, devices aside."""
        words: list[Argument] = [
            *([] if self.joins else ["--init"]),
            "--restart",
            "no",
            "--network",
            "host",
            "--entrypoint",
            "sleep",
        ]
        words += [*self._namespaces(), "--ulimit", f"nofile={NOFILE}", "--workdir", WORKSPACE]
        words += ["--volume", f"{self.work_volume}:{WORKSPACE}"]
        if self.gpu:
            driver = RemotePath(self.driver_dir)
            words += ["--volume", join(driver / "lib64", ":/usr/local/nvidia/lib64:ro")]
            words += ["--volume", join(driver / "bin", ":/usr/local/nvidia/bin:ro")]
        for volume in self.volumes:
            source, _, target = volume.partition(":")
            words += [
                "--volume",
                join(RemotePath(source), f":{target}") if source.startswith("/") else volume,
            ]
        for name, value in sorted(self.environment(facts).items()):
            words += ["--env", f"{name}={value}"]
        if self.privileged:
            words.append("--privileged")
        return words

    def _namespaces(self) -> list[Argument]:
        """Whose processes and shared memory it sees; the first process of a joined namespace is another container's, and reaps."""
        if self.joins:
            return ["--pid", f"container:{self.joins}", "--ipc", f"container:{self.joins}"]
        return [*(["--ipc", "shareable"] if self.shares else []), "--shm-size", self.shm_size]

    def spec(self, facts: Facts) -> str:
        """A digest of everything the container is started with, kept as its label."""
        text = " ".join(
            quote(word)
            for word in [self.image, "devices" if self.gpu else "", *self.arguments(facts)]
        )
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def probe(self) -> Script:
        """Running, its image, its labels; the current image of that name; the loaded driver; the container it joins."""
        return self.look(siblings="")

    def look(self, *, siblings: str) -> Script:
        """The probe of this container, or of those that carry the label of its siblings."""
        return script(
            _PROBE,
            siblings=siblings,
            name=self.container,
            image=self.image,
            labels=_LABELS,
            joins=self.joins,
            folder=self.folder,
        )

    def read(self, text: str) -> State | None:
        """`{"running", "spec", "image", "driver"}`, the last two `current` or `stale`; None without a container.

        With `joins`, `joined` as well: `stale` when the container of that name is another one now.
        """
        if not text.strip():
            return None
        head, _, rest = text.partition("\n")
        state = _read(head, fields(rest))
        return (
            state if self.joins else {key: value for key, value in state.items() if key != "joined"}
        )

    def desired(self, facts: Facts) -> State:
        """Running, as specified, from the current image, with the current driver."""
        joined = {"joined": "current"} if self.joins else {}
        return {
            "running": True,
            "spec": self.spec(facts),
            "image": "current",
            "driver": "current",
            **joined,
        }

    def ensure(self, facts: Facts) -> Script | None:
        """Start it, or recreate it where anything of it is stale."""
        return script(
            _ENSURE, argv=self.arguments(facts), siblings="", name=self.container
        ).with_bindings(self.bindings(facts))

    def bindings(self, facts: Facts) -> dict[str, Argument]:
        """What the scripts that make it read."""
        devices = "yes" if self.gpu and not self.privileged else ""
        words: dict[str, Argument] = {
            "image": self.image,
            "spec": self.spec(facts),
            "devices": devices,
            "joins": self.joins,
        }
        return {**words, "labels": _LABELS, "folder": self.folder}

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """No image, no `sleep` in it, no device nodes, full disk."""
        if "was not made by provision" in output:
            return foreign_container(self.container)
        if "error gathering device information" in output:
            return Diagnosis("the driver's device nodes are gone", "invoke vm.provision")
        if "No such image" in output:
            return Diagnosis("the worker image is not on the host", "invoke dev.up")
        if re.search(r'exec: "sleep"|"sleep": executable file not found', output):
            return Diagnosis(
                "the image has no `sleep` to stay alive with",
                "base worker.image on a distribution with coreutils or busybox",
            )
        return remember_disk_full(output)


def _read(line: str, now: Mapping[str, str]) -> dict[str, str | bool]:
    """One container: what it was made from, and whether that is what there is now."""
    running, image, spec, driver, *joined = line.split("|")
    current = {True: "current", False: "stale"}
    return {
        "running": running == "true",
        "spec": spec,
        "image": current[image == now.get("image", "").strip()],
        "driver": current[driver == now.get("driver", "").strip()],
        "joined": current["".join(joined) == now.get("owner", "").strip()],
    }


@dataclass(frozen=True, kw_only=True)
class Siblings(Resource):
    """Worker containers 2 to `count` (NAME-2, …), each like `first`; none of them where `first` joins no other container.

    `count` None means one worker for each CPU, as Dataflow has it.
    """

    first: Container
    count: int | None = None
    timeout_s: float = 600.0

    def names(self, facts: Facts) -> list[str]:
        """Every worker container, the first one included."""
        name = self.first.container
        return [name, *(f"{name}-{number}" for number in range(2, self._total(facts) + 1))]

    def _total(self, facts: Facts) -> int:
        return (
            max(1, self.count if self.count is not None else facts.cpus) if self.first.joins else 1
        )

    def probe(self) -> Script:
        """Every container with the label of a sibling."""
        return self.first.look(siblings="yes")

    def read(self, text: str) -> State | None:
        """`{"count", "running"}`, and what `Container` reads; where they differ, the spec is `mixed`, anything else `stale`."""
        lines = [line for line in text.splitlines() if "|" in line]
        if not lines:
            return None
        boxes = [_read(line, fields(text)) for line in lines]
        specs = {str(box["spec"]) for box in boxes}
        aged = {
            key: "current" if all(box[key] == "current" for box in boxes) else "stale"
            for key in ("image", "driver", "joined")
        }
        running = sum(bool(box["running"]) for box in boxes)
        return {
            "count": len(boxes),
            "running": running,
            "spec": specs.pop() if len(specs) == 1 else "mixed",
            **aged,
        }

    def desired(self, facts: Facts) -> State | None:
        """So many, all running and as the first one; None for none."""
        others = self._total(facts) - 1
        if not others:
            return None
        return {"count": others, **self.first.desired(facts), "running": others}

    def ensure(self, facts: Facts) -> Script | None:
        """Remove what is too many, then start or recreate the others."""
        first, words = self.first, self.first.arguments(facts)
        return script(
            _ENSURE, argv=words, siblings=self._total(facts), name=first.container
        ).with_bindings(first.bindings(facts))

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:
        """As for the first one."""
        return self.first.diagnose(output, actual)


@dataclass(frozen=True, kw_only=True)
class NoContainer(Resource):
    """The container is gone, and `volumes` with it. One of that name that is not ours is left alone."""

    container: str
    volumes: tuple[str, ...] = ()

    def probe(self) -> Script:
        """Its id and our label, where it exists."""
        text = '{{.Id}}|{{index .Config.Labels "provision.spec"}}'
        return script(
            'docker container inspect -f "$format" "$name" 2>/dev/null || true',
            name=self.container,
            format=text,
        )

    def read(self, text: str) -> State | None:
        """`{"id"}`; None when there is none of ours."""
        identity, _, spec = text.strip().partition("|")
        return {"id": identity} if spec else None

    def desired(self, facts: Facts) -> State | None:  # noqa: ARG002
        """Absent."""
        return None

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Stop it, so that programs may end, then remove it. The workspace volume is kept."""
        return script(
            """
docker stop --time 10 "$name"
docker rm --force "$name"
test "$#" -eq 0 || docker volume rm "$@" || true
""",
            argv=self.volumes,
            name=self.container,
        )
