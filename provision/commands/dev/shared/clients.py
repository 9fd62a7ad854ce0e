"""The same program several times at once: started together, told apart, ended together.

As in the experiment that MPS is judged by: n processes that begin on one barrier, each with its
share of the CPU's threads. They run side by side in the worker container, or spread over the worker
containers where there are several.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provision.commands.dev.shared.streams import Lines, pieces
from provision.commands.shared import remote_exec
from provision.commands.shared.result import TaskResult
from provision.core.errors import HostError, Interrupted, ProvisionError
from provision.core.frames import MarkReader
from provision.core.job import script_command
from provision.core.model import Sink, Transport
from provision.core.shell import Script, script
from provision.core.worker_environment import THREAD_VARIABLES
from provision.project.project import Project
from provision.resources.container import WORKSPACE

BARRIER_S = 60
"""How long programs wait for one another before they give up: one that cannot be started would hold
up all."""

# Every program has a shell of its own in its container. It leaves a file when it is there, waits
# until all files are, and says on standard error when its program began (seconds since 1970, and
# since the machine's start) and how it ended: with a mark that stands anywhere, as the program's
# last line may have no end.
_ONE = """
R=${PROVISION_MOCK_ROOT-}
mark=$1 number=$2 count=$3 patience_s=$4 meeting=$R$5 box=$6
shift 6
there() {
    set -- "$meeting"/*
    test "$#" -ge "$count"
}
uptime() {
    read -r up _ </proc/uptime
    echo "$up"
}
mkdir -p "$meeting"
: >"$meeting/$number"
deadline=$(($(date +%s) + patience_s))
until there; do
    test "$(date +%s)" -lt "$deadline" || exit 125
    sleep 0.02
done
echo "$mark begin $(date +%s) $(uptime) $box" >&2
status=0
"$@" </dev/null || status=$?
echo "$mark end $(uptime) $status" >&2
exit "$status"
"""

# Every stream comes in frames, each a piece as it was read, so that nothing that a program prints
# touches what another one prints; in base64, as a shell can hold no NUL. A long write is in no
# shell in one piece, so whoever writes holds the turn, an empty line in a pipe. A piece of some
# size means that more waits; after a small one the next may gather for a moment, as each costs
# three processes. The end of a stream is a frame with nothing in it.
_ALL = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || { echo "$token not-running" >&2; exit 125; }
boxes=$(echo "$name"; docker ps --filter "label=provision.sibling=$name" --format '{{.Names}}' | sort)
over() {
    for box in $boxes; do docker exec "$box" sh -c "$end" provision "$token" & done
    wait
    docker exec "$name" sh -c 'rm -rf "${PROVISION_MOCK_ROOT-}$1"' provision "$dir/.provision-$token"
}
test -z "$ending" || { over; exit 0; }
test ! -e "$chosen" || docker exec "$daemon" sh -c "$alive" </dev/null >/dev/null 2>&1 || echo "$without" >&2
test -z "$hidden" || unset "$hidden"
trap 'over; exit 143' TERM HUP INT
turn=$R/tmp/provision-$token
mkfifo -m 600 "$turn" || exit 125
exec 5<>"$turn"
rm -f "$turn"
echo >&5
framed() {
    while
        piece=$(dd bs=65536 count=1 2>/dev/null | base64)
        read -r _ <&5
        printf '%s begin %s\\n%s\\n%s end %s 0\\n' "$mark" "$1" "$piece" "$mark" "$1"
        echo >&5
        test -n "$piece"
    do
        test "${#piece}" -gt 5000 || sleep 0.2
    done
}
cores=$(grep -c '^processor' "$R/proc/cpuinfo" 2>/dev/null || nproc)
missing=
number=1
while test -n "$apart" && test "$number" -lt "${workers:-$cores}"; do
    number=$((number + 1))
    printf '%s\\n' "$boxes" | grep -qxF "$name-$number" || missing="$missing $name-$number"
done
test -z "$missing" || echo "not running:$missing; the programs go to the others (dev.up starts them)" >&2
share=$((cores / count))
test "$share" -ge 1 || share=1
environment=
for variable in $threads; do environment="$environment --env $variable=$share"; done
for variable in $more $hidden; do environment="$environment --env $variable"; done
one() {
    box=$1 number=$2
    shift 2
    {
        # shellcheck disable=SC2086 # words without blanks
        docker exec $environment --env "PROVISION_RUN=$token" --workdir "$dir" "$box" sh -c "$body" sh \\
            "$mark" "$number" "$count" "$patience_s" "$dir/.provision-$token" "$box" "$@" 2>&3 | framed "$number.out" >&4 3>&-
    } 3>&1 | framed "$number.err"
}
exec 4>&1
number=1
while test "$number" -le "$count"; do
    for box in $boxes; do
        test "$number" -le "$count" || break
        one "$box" "$number" "$@" &
        number=$((number + 1))
    done
done
wait
docker exec "$name" sh -c 'rm -rf "${PROVISION_MOCK_ROOT-}$1"' provision "$dir/.provision-$token"
"""


def in_containers(
    project: Project, words: Sequence[str], count: int, token: str, *, ending: bool = False
) -> Script:
    """The script that runs `words` so often, and ends them all when it is told to end; with `ending`, it does that alone.

    Threads that the settings do not set are shared out: several processes with a thread per core
    each were measured up to 64 times slower (docs/facts.md).
    """
    worker = project.settings.worker
    return script(
        _ALL,
        argv=words,
        name=worker.name,
        token=token,
        apart="yes" if project.settings.mps.topology == "containers" else "",
        workers=worker.processes or "",
        mark=_mark(token),
        count=count,
        ending="yes" if ending else "",
        dir=WORKSPACE,
        end=remote_exec.END,
        body=_ONE,
        patience_s=BARRIER_S,
        threads=" ".join(name for name in THREAD_VARIABLES if name not in worker.env),
        more="" if "PYTHONUNBUFFERED" in worker.env else "PYTHONUNBUFFERED=1",
    ).with_bindings(remote_exec.around(project))


@dataclass
class Client:
    """One of the programs. Times in seconds since 1970 and since the machine's start; None for what was not heard."""

    number: int
    container: str = ""
    started: int | None = None
    began_s: float | None = None
    ended_s: float | None = None
    status: int | None = None

    @property
    def seconds(self) -> float | None:
        """How long it ran."""
        return (
            None
            if self.began_s is None or self.ended_s is None
            else round(self.ended_s - self.began_s, 2)
        )

    def as_dict(self) -> dict[str, object]:
        """For the document of `--json`."""
        stamp = (
            None
            if self.started is None
            else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started))
        )
        return {
            "client": self.number,
            "container": self.container,
            "started": stamp,
            "seconds": self.seconds,
            "status": self.status,
        }


class Errors:
    """Standard error of one of them: its lines go on, and what we say there of its beginning and end becomes its record."""

    def __init__(self, client: Client, mark: str, sink: Sink) -> None:
        self._client = client
        self._sink = sink
        self._lines = Lines(client.number, sink)
        self._marks = MarkReader(mark, _record)

    def __call__(self, data: bytes) -> None:
        """Take some bytes, in whatever pieces they come."""
        for part in self._marks.feed(data):
            if isinstance(part, bytes):
                self._lines(part)
            else:
                self._lines.close()
                self._sink(f"[{self._client.number}] {self._written_down(*part)}\n".encode())

    def _written_down(self, what: str, *words: str) -> str:
        client = self._client
        if what == "begin":
            client.started, client.began_s, client.container = (
                int(words[0]),
                float(words[1]),
                words[2],
            )
            return f"starts {_clock(client.started)}"
        client.ended_s, client.status = float(words[0]), int(words[1])
        return f"ends after {client.seconds:.2f} s, status {client.status}"

    def close(self) -> None:
        """Hand on what came without a line end."""
        self._lines(self._marks.close())
        self._lines.close()


def _record(words: Sequence[str]) -> Sequence[str] | None:
    return words if (words[0], len(words)) in {("begin", 4), ("end", 3)} else None


def _mark(token: str) -> str:
    return f":{token}:"


class Told:
    """All that comes over the channel: what the programs print, and what we say of them."""

    def __init__(self, token: str, count: int, stdout: Sink, stderr: Sink) -> None:
        self.clients = [Client(number) for number in range(1, count + 1)]
        self._streams: dict[str, Lines | Errors] = {
            f"{client.number}.out": Lines(client.number, stdout) for client in self.clients
        }
        self._streams |= {
            f"{client.number}.err": Errors(client, _mark(token), stderr) for client in self.clients
        }
        self._take = pieces(_mark(token), self._hear)

    def __call__(self, data: bytes) -> None:
        """Take some bytes, in whatever pieces they come."""
        self._take(data)

    def _hear(self, key: str, data: bytes) -> None:
        stream = self._streams[key]
        if data:
            stream(data)
        else:
            stream.close()

    def close(self) -> None:
        """Hand on what came without a line end."""
        for stream in self._streams.values():
            stream.close()


def run(project: Project, transport: Transport, words: Sequence[str], count: int) -> TaskResult:
    """Run `words` so often at once, each line with its program's number in front; returns the worst status.

    Ctrl-C ends them all, as a lost connection does, and how far each came is told as well. Failures
    of ours are raised: no container, no connection, or programs that did not all come to the start.
    """
    token = secrets.token_hex(8)
    told = Told(token, count, project.stdout, project.stderr)
    ours = remote_exec.Told(token, project.stderr)
    command, stdin = script_command(
        in_containers(project, words, count, token), become=transport.host.become
    )
    try:
        transport.exchange(
            command, stdin, on_stdout=told, on_stderr=ours, timeout_s=remote_exec.LONGEST_RUN_S
        )
    except KeyboardInterrupt:
        # What the end of the channel would do by itself is waited for here; a second Ctrl-C leaves
        # it to that.
        with contextlib.suppress(KeyboardInterrupt, ProvisionError):
            remote_exec.checked(
                transport,
                in_containers(project, words, count, token, ending=True),
                "ending the programs",
                timeout_s=60.0,
            )
        told.close()
        return interrupted(told.clients)
    except ProvisionError:
        told.close()
        project.stderr("\n".join(["", *_table(told.clients, cut="not heard of"), ""]).encode())
        raise
    told.close()
    if ours.not_running:
        raise remote_exec.not_running(project, transport)
    there = sum(client.began_s is not None for client in told.clients)
    if there < count:
        why = f"{there} of {count} came to the start within {BARRIER_S} s"
        raise HostError(
            "not every program could be started",
            where=transport.host.name,
            why=why,
            fix="--clients with a smaller number",
        )
    return finished(told.clients)


def finished(clients: Sequence[Client]) -> TaskResult:
    """The end of them all; one that ended without a word was killed (137)."""
    for client in clients:
        client.status = 137 if client.status is None else client.status
    worst = max(client.status or 0 for client in clients)
    makespan = _makespan(clients)
    failed = sum(bool(client.status) for client in clients)
    end = (
        f"all of them took {makespan:.2f} s"
        if makespan is not None
        else "none of them told its end"
    )
    document = {**_document(clients), "status": worst, "failed_in": "program" if worst else None}
    return TaskResult(
        document, worst, "\n".join([*_table(clients), f"{end}, {failed} failed" if failed else end])
    )


def interrupted(clients: Sequence[Client]) -> TaskResult:
    """How far each came until Ctrl-C; whoever had not ended by itself was ended, and has no status."""
    error = Interrupted(
        "interrupted",
        why=f"{sum(client.status is not None for client in clients)} of {len(clients)} had ended",
    )
    document = {
        **_document(clients),
        "status": None,
        "failed_in": "provision",
        "error": error.as_dict(),
    }
    # The first line is the terminal's, which shows ^C there.
    return TaskResult(
        document,
        error.exit_code,
        "\n".join(
            [
                "",
                *_table(clients, cut="interrupted"),
                f"interrupted: {error.why}, the others were ended",
            ]
        ),
    )


def _makespan(clients: Sequence[Client]) -> float | None:
    """Seconds from the first start to the last end that were heard of."""
    ends = [client.ended_s for client in clients if client.ended_s is not None]
    begins = [client.began_s for client in clients if client.began_s is not None]
    return round(max(ends) - min(begins), 2) if ends and begins else None


def _document(clients: Sequence[Client]) -> dict[str, Any]:
    return {"seconds": _makespan(clients), "clients": [client.as_dict() for client in clients]}


def _table(clients: Sequence[Client], *, cut: str = "") -> list[str]:
    """A line for each; `cut` is what is said of one that began and whose end was not heard."""
    home = max(9, *(len(client.container) for client in clients))
    ends = [_end(client, cut) for client in clients]
    last = max(6, *map(len, ends))
    lines = [f"client  {'container':<{home}}  started   seconds  {'status':>{last}}"]
    for client, end in zip(clients, ends, strict=True):
        spent = "-" if client.seconds is None else f"{client.seconds:.2f}"
        started = "-" if client.started is None else _clock(client.started)
        lines.append(
            f"{client.number:>6}  {client.container or '-':<{home}}  {started:<8}  {spent:>7}  {end:>{last}}"
        )
    return lines


def _end(client: Client, cut: str) -> str:
    if client.status is not None:
        return str(client.status)
    return "not started" if client.began_s is None else cut


def _clock(seconds: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
