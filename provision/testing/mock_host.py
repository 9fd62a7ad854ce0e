"""A mock host: a real SSH server in front of real shells under a folder of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from provision.core.model import Host
from provision.testing.faults import Faults, Stats
from provision.testing.host import cloud_init
from provision.testing.host.filesystem import Layout, Machine
from provision.testing.host.gpu_models import model
from provision.testing.host.location import find_python, place
from provision.testing.host.processes import MockHostError, Process, Processes
from provision.testing.ssh.keys import load_or_make_key, public_line
from provision.testing.ssh.server import Access, SshServer
from provision.testing.ssh.session import Terminal

_HOST_KEY_FOLDER = "/mnt/stateful_partition/etc/ssh"
SHELLS = ("system", "dash", "bash", "busybox")
SYSTEMS = ("cos", "ubuntu")


class MockHost:
    """A host that behaves as Container-Optimized OS with a GPU does, for tests and for the first five minutes.

    Commands run in a real POSIX shell under a root folder of the host's own; what
    Container-Optimized OS brings (`sudo`, `cos-extensions`, `docker`, …) are stand-ins that have
    the traps of the real ones.

        with MockHost() as mock:
            assert mock.run("sudo cos-extensions install gpu").status == 0

    `gpu` is an accelerator type of Compute Engine, or None; `shell` is "system" (bash for logins,
    the system's sh), "dash", "bash" or "busybox" (nothing but busybox applets and stand-ins).
    `system="ubuntu"` is a workstation with a driver of its own instead (`driver: present`), without
    what only Container-Optimized OS brings. `folder` keeps the host's disk between runs; without it
    the host leaves nothing behind. `authorize` are (user, public key line); without it the host
    makes a key of its own, and `host.identity` names it.
    """

    def __init__(
        self,
        *,
        name: str = "mock",
        user: str = "user",
        gpu: str | None = "nvidia-l4",
        gpu_count: int = 1,
        cpus: int = 8,
        memory_gb: int = 32,
        shell: str = "system",
        system: str = "cos",
        folder: Path | None = None,
        port: int = 0,
        authorize: tuple[tuple[str, str], ...] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if shell not in SHELLS:
            raise ValueError(f"shell must be one of {', '.join(SHELLS)}, not {shell!r}")
        if system not in SYSTEMS:
            raise ValueError(f"system must be one of {', '.join(SYSTEMS)}, not {system!r}")
        self.name = name
        self.user = user
        self.stats = Stats()
        self._machine = Machine(
            name, model(gpu) if gpu else None, gpu_count, cpus, memory_gb, system
        )
        self._shell = shell
        self._wanted_folder = folder
        self._port = port
        self._authorize = authorize
        self._metadata = dict(metadata or {})
        self._started = False

    # --- life ---

    def start(self) -> Self:
        """Make or reopen the folder, boot, listen. Raises `MockHostError` where the machine cannot hold a mock host."""
        self.processes = Processes()
        try:
            self.folder = place(self._wanted_folder, self.processes)
            self._layout = Layout(self.folder, self.processes, self._shell)
            self._layout.prepare(self._machine)
            self._layout.write_state("python", find_python(self.processes) + "\n")
            for key, value in self._metadata.items():
                self._layout.write_state(f"metadata/{key}", value)
            self.faults = Faults(self._layout.state / "faults")
            self._prepare_access()
            self._layout.boot()
            self._boot_user_space()
            self.server = SshServer(self, self.access, self._host_key, self.faults, self.stats)
            self.server.start(self._port)
        except BaseException:
            self.processes.close()
            self._remove()
            raise
        self._started = True
        return self

    def stop(self) -> None:
        """Close every connection and end every process; a host without a folder of yours is removed."""
        if not self._started:
            return
        self._started = False
        self.server.stop()
        self.processes.close()
        self._remove()

    def _remove(self) -> None:
        if self._wanted_folder is None and hasattr(self, "folder"):
            shutil.rmtree(self._keys, ignore_errors=True) if hasattr(self, "_keys") else None
            _remove_tree(self.folder)

    def destroy(self) -> None:
        """Stop, and remove the folder as well; also for a host that was never started."""
        self.stop()
        if self._wanted_folder is not None:
            record = self._wanted_folder / "placed-at"
            if record.exists():
                _remove_tree(Path(record.read_text()))
            _remove_tree(self._wanted_folder)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _prepare_access(self) -> None:
        self.access = Access()
        self._keys = (
            Path(tempfile.mkdtemp(prefix="provision-mock-keys-"))
            if self._wanted_folder is None
            else self._wanted_folder / "keys"
        )
        self._keys.mkdir(mode=0o700, exist_ok=True)
        self._host_key = load_or_make_key(self._keys / "ssh_host_ed25519_key")
        self._as_user(
            'mkdir -p "${1%/*}" && cat >"$1"',
            f"{_HOST_KEY_FOLDER}/ssh_host_ed25519_key.pub",
            stdin=public_line(self._host_key) + " mock\n",
        )
        self.identity: str | None = None
        allowed = self._authorize
        if allowed is None:
            key = load_or_make_key(self._keys / "id_ed25519")
            self.identity = str(self._keys / "id_ed25519")
            allowed = ((self.user, public_line(key)),)
        for user, line in allowed:
            self.authorize(user, line)

    def authorize(self, user: str, line: str) -> None:
        """Let `user` in with a public key line, and make its home, as the guest agent does for the metadata `ssh-keys`."""
        self.access.allow(user, line)
        self._as_user(
            'mkdir -p "$1/.ssh" && chmod 700 "$1/.ssh" && cat >>"$1/.ssh/authorized_keys"',
            f"/home/{user}",
            stdin=line + "\n",
        )

    def make_home(self, user: str) -> None:
        """As a first login does where OS Login knows the account."""
        self._as_user('mkdir -p "$1"', f"/home/{user}")

    # --- what a test asks ---

    @property
    def host(self) -> Host:
        """The host as the settings would describe it: loopback, port, user, identity and pinned host key."""
        return Host(
            name=self.name,
            address="127.0.0.1",
            port=self.server.port,
            user=self.user,
            identity=self.identity,
            host_key=public_line(self._host_key),
        )

    @property
    def root(self) -> Path:
        """The folder that stands for `/`."""
        return self._layout.root

    @property
    def root_path(self) -> str:
        """The same as text."""
        return str(self._layout.root)

    @property
    def state(self) -> Path:
        """The mock's own state: mount table, loaded module, metadata, buckets."""
        return self._layout.state

    @property
    def disk_is_full(self) -> bool:
        """True while `faults.disk_full` is set."""
        return self.faults.disk_full

    def path(self, path: str) -> Path:
        """Where the host's absolute `path` lies on this machine."""
        return self.root / path.lstrip("/")

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 60) -> Result:
        """Run a command line as the login user would, without SSH; output and errors come as one text."""
        argv = [self._layout.login_shell(), "-c", command]
        status, output = self.processes.run(
            argv,
            env=self._environment(self.user),
            cwd=self._home(self.user),
            stdin=stdin,
            timeout_s=timeout_s,
        )
        return Result(status, output)

    @property
    def console(self) -> str:
        """What the host printed on its serial console."""
        path = self.state / "console"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def guest_attributes(self) -> dict[str, str]:
        """What programs of the host PUT to the metadata server, by `namespace/key`."""
        folder = self.state / "guest-attributes"
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_text(errors="replace") for path in paths}

    def print_console(self, text: str) -> None:
        """Print on the serial console."""
        if text:
            self._layout.write_state("console", self.console + text)

    def _as_user(self, source: str, path: str, *words: str, stdin: str = "") -> None:
        argv = [str(self.folder / "sysbin/sh"), "-c", source, "sh", self.root_path + path, *words]
        status, output = self.processes.run(
            argv, env={"PATH": f"{self.folder}/sysbin"}, cwd="/", stdin=stdin.encode()
        )
        if status != 0:
            raise MockHostError(f"{path}: {output.strip()}")

    def put(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file on the host, as root would."""
        self._as_user('mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"', path, mode, stdin=text)

    def put_user_data(self, text: str) -> None:
        """Set the metadata key `user-data`; it takes effect at the next boot, as on the real thing."""
        self._layout.write_state("metadata/user-data", text)

    def put_object(self, bucket: str, name: str, data: bytes) -> None:
        """Put an object into a bucket that the toolbox's gsutil and gcloud can copy from."""
        path = self.state / "buckets" / bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._layout.own("state")

    def remove_command(self, name: str) -> None:
        """Make a command of the host not found, until `restore_commands`."""
        hidden = self.folder / "hidden"
        hidden.mkdir(exist_ok=True)
        found = [
            folder / name
            for folder in (self.folder / "mock/bin", self.folder / "sysbin")
            if os.path.lexists(folder / name)
        ]
        if not found:
            raise ValueError(f"the mock host has no command {name!r}")
        for path in found:
            path.rename(hidden / f"{path.parent.name}-{name}")

    def restore_commands(self) -> None:
        """Bring every removed command back."""
        for path in (self.folder / "hidden").glob("*-*"):
            where, _, name = path.name.partition("-")
            path.rename(self.folder / ("mock/bin" if where == "bin" else "sysbin") / name)

    def change_host_key(self) -> None:
        """Answer with another host key from the next connection on, as a machine in the middle would."""
        key = self._keys / "ssh_host_ed25519_key"
        key.unlink()
        self._host_key = self.server.host_key = load_or_make_key(key)

    def wait_for_unit(self, unit: str, timeout_s: float = 60) -> str:
        """Wait until a unit that is being started has ended, and return its state: active, inactive or failed."""
        deadline = time.monotonic() + timeout_s
        while (
            state := self.run(f"systemctl is-active {shlex.quote(unit)}").output.strip()
        ) == "activating":
            if time.monotonic() > deadline:
                raise MockHostError(f"{unit} is still being started after {timeout_s:g} s")
            time.sleep(0.05)
        return state

    def reboot(self) -> None:
        """Lose what a reboot of Container-Optimized OS loses, then start up, cloud-init's user-data included.

        Gone are connections and processes, edits of /etc, /tmp, /run, mounts and the exec remount,
        the loaded module and its device nodes, started units; containers are stopped. What lies on
        the stateful partition stays.
        """
        self.server.drop_connections()
        self.processes.kill_all()
        self._layout.boot()
        self._boot_user_space()

    def _boot_user_space(self) -> None:
        environment = self._layout.environment("root", sudo=True)
        docker = self.folder / "mock/bin/docker"
        if docker.exists() and self.path("/var/lib/docker/containers").is_dir():
            self.processes.run([str(docker), "_boot"], env=environment, cwd="/")
        user_data = self.state / "metadata" / "user-data"
        if user_data.exists():
            cloud_init.apply(user_data.read_text(), self)

    # --- what the server asks ---

    def run_as_root(
        self, argv: list[str], *, stdin: bytes = b"", timeout_s: float = 900
    ) -> tuple[int, str]:
        """Run a program of the host with its root's environment, as the boot does."""
        environment = self._layout.environment("root", sudo=True)
        program = shutil.which(argv[0], path=environment["PATH"]) or argv[0]
        return self.processes.run(
            [program, *argv[1:]],
            env=environment,
            cwd=self.root_path,
            stdin=stdin,
            timeout_s=timeout_s,
        )

    def _home(self, user: str) -> str:
        home = self.path(f"/home/{user}")
        return str(home) if home.is_dir() else self.root_path

    def _environment(self, user: str) -> dict[str, str]:
        extra = [str(self.folder / "mock/full-disk")] if self.faults.disk_full else []
        return self._layout.environment(user, extra_path=extra)

    def start_command(
        self, user: str, command: str | None, fds: list[int], terminal: Terminal | None
    ) -> Process:
        """Start the login shell for a session of the SSH server."""
        environment = self._environment(user)
        if terminal is not None:
            environment["TERM"] = terminal.term
        shell = self._layout.login_shell()
        argv = [shell, "-c", command] if command is not None else _interactive(shell)
        return self.processes.spawn(
            shell,
            argv,
            env=environment,
            cwd=self._home(user),
            fds=fds,
            tty=terminal is not None,
            full_disk=self.faults.disk_full,
        )


class Result(NamedTuple):
    """How a command ended: its exit status (minus a signal's number where one ended it), and what it printed on both streams."""

    status: int
    output: str


def _interactive(shell: str) -> list[str]:
    # not a login shell: /etc/profile is this machine's and would replace PATH
    return [shell, "--noprofile", "--norc", "-i"] if Path(shell).name == "bash" else [shell, "-i"]


def _remove_tree(folder: Path) -> None:
    if not folder.exists():
        return
    for base, folders, _ in os.walk(folder):
        for path in (Path(base, name) for name in folders):
            if not path.is_symlink():
                path.chmod(0o755)
    shutil.rmtree(folder)
