"""A mock host: an SSH server in front of real shells that run under a folder of their own."""

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
from provision.testing.host import cloud_init
from provision.testing.host.filesystem import Hardware, HostFilesystem
from provision.testing.host.gpu_models import gpu_model
from provision.testing.host.location import choose_folder, find_python
from provision.testing.host.processes import MockHostError, Process, Processes
from provision.testing.host_faults import Faults, Stats
from provision.testing.ssh.keys import load_or_make_key, public_line
from provision.testing.ssh.server import Access, SshServer
from provision.testing.ssh.session import Terminal

_HOST_KEY_FOLDER = "/mnt/stateful_partition/etc/ssh"
SHELLS = ("system", "dash", "bash", "busybox")
SYSTEMS = ("cos", "ubuntu")


class MockHost:
    """A host that behaves as Container-Optimized OS with a GPU.

    Commands run in a real POSIX shell under the host's own root folder. The programs of
    Container-Optimized OS (`sudo`, `cos-extensions`, `docker`, …) are stand-ins that fail as the
    real ones do.

        with MockHost() as mock:
            assert mock.run("sudo cos-extensions install gpu").status == 0

    `gpu` is an accelerator type of Compute Engine, or None; `shell` is "system" (bash for logins,
    the system's sh), "dash", "bash" or "busybox" (nothing but busybox applets and stand-ins).
    `system="ubuntu"` is a workstation with an installed driver (`driver: present`), without the
    programs of Container-Optimized OS. `folder` keeps the host's disk between runs; without it the
    host leaves nothing behind. `authorize` are (user, public key line) pairs; without them the host
    generates a key, whose path is `host.identity`. Raises `ValueError` for an unknown GPU, shell or
    system.
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
        self._hardware = Hardware(
            name, gpu_model(gpu) if gpu else None, gpu_count, cpus, memory_gb, system
        )
        self._shell = shell
        self._wanted_folder = folder
        self._port = port
        self._authorize = authorize
        self._metadata = dict(metadata or {})
        self._started = False

    # --- life ---

    def start(self) -> Self:
        """Create or reopen the folder, boot, and listen. Raises `MockHostError` when that fails."""
        self.processes = Processes()
        try:
            self.folder = choose_folder(self._wanted_folder, self.processes)
            self._filesystem = HostFilesystem(self.folder, self.processes, self._shell)
            self._filesystem.prepare(self._hardware)
            self._filesystem.write_state("python", find_python(self.processes) + "\n")
            for key, value in self._metadata.items():
                self._filesystem.write_state(f"metadata/{key}", value)
            self.faults = Faults(self._filesystem.state / "faults")
            self._prepare_access()
            self._filesystem.boot()
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
        """Close connections and end processes; without `folder` remove the host's folder."""
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
        """Stop and remove the folder, also for a host that was never started."""
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
        """Authorize a public key line and create the user's home, as the guest agent does."""
        self.access.allow(user, line)
        self._as_user(
            'mkdir -p "$1/.ssh" && chmod 700 "$1/.ssh" && cat >>"$1/.ssh/authorized_keys"',
            f"/home/{user}",
            stdin=line + "\n",
        )

    def make_home(self, user: str) -> None:
        """Create the home of a user, as the first login with OS Login does."""
        self._as_user('mkdir -p "$1"', f"/home/{user}")

    # --- for tests ---

    @property
    def host(self) -> Host:
        """The host for a connection: loopback, port, user, identity and pinned host key."""
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
        return self._filesystem.root

    @property
    def root_path(self) -> str:
        """`root` as text."""
        return str(self._filesystem.root)

    @property
    def state(self) -> Path:
        """The folder of the mock's own state: mount table, loaded module, metadata, buckets."""
        return self._filesystem.state

    @property
    def disk_is_full(self) -> bool:
        """True while `faults.disk_full` is set."""
        return self.faults.disk_full

    def path(self, path: str) -> Path:
        """The host's absolute `path` on this machine."""
        return self.root / path.lstrip("/")

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 60) -> Result:
        """Run a command line as the login user, without SSH; both streams come as one text."""
        argv = [self._filesystem.login_shell(), "-c", command]
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
        """The output on the serial console."""
        path = self.state / "console"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def guest_attributes(self) -> dict[str, str]:
        """The guest attributes that programs have PUT, by `namespace/key`."""
        folder = self.state / "guest-attributes"
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_text(errors="replace") for path in paths}

    def print_console(self, text: str) -> None:
        """Print on the serial console."""
        if text:
            self._filesystem.write_state("console", self.console + text)

    def _as_user(self, source: str, path: str, *words: str, stdin: str = "") -> None:
        argv = [str(self.folder / "sysbin/sh"), "-c", source, "sh", self.root_path + path, *words]
        status, output = self.processes.run(
            argv, env={"PATH": f"{self.folder}/sysbin"}, cwd="/", stdin=stdin.encode()
        )
        if status != 0:
            raise MockHostError(f"{path}: {output.strip()}")

    def put(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file on the host as root. Raises `MockHostError` when that fails."""
        self._as_user('mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"', path, mode, stdin=text)

    def put_user_data(self, text: str) -> None:
        """Set the metadata key `user-data`, which the next boot applies."""
        self._filesystem.write_state("metadata/user-data", text)

    def put_object(self, bucket: str, name: str, data: bytes) -> None:
        """Create an object in a bucket, for gsutil and gcloud of the toolbox."""
        path = self.state / "buckets" / bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._filesystem.own("state")

    def remove_command(self, name: str) -> None:
        """Hide a command until `restore_commands`. Raises `ValueError` for an unknown one."""
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
        """Restore every removed command."""
        for path in (self.folder / "hidden").glob("*-*"):
            where, _, name = path.name.partition("-")
            path.rename(self.folder / ("mock/bin" if where == "bin" else "sysbin") / name)

    def change_host_key(self) -> None:
        """Use another host key from the next connection on, as a man in the middle does."""
        key = self._keys / "ssh_host_ed25519_key"
        key.unlink()
        self._host_key = self.server.host_key = load_or_make_key(key)

    def wait_for_unit(self, unit: str, timeout_s: float = 60) -> str:
        """Wait while a unit is activating; return its state: active, inactive or failed.

        Raises `MockHostError` after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while (
            state := self.run(f"systemctl is-active {shlex.quote(unit)}").output.strip()
        ) == "activating":
            if time.monotonic() > deadline:
                raise MockHostError(f"{unit} is still being started after {timeout_s:g} s")
            time.sleep(0.05)
        return state

    def reboot(self) -> None:
        """Reboot as Container-Optimized OS does, and apply the user-data.

        Connections, processes, edits of /etc, /tmp, /run, mounts and the exec remount, the loaded
        module, its device nodes and started units are lost; containers are stopped. The stateful
        partition stays.
        """
        self.server.drop_connections()
        self.processes.kill_all()
        self._filesystem.boot()
        self._boot_user_space()

    def _boot_user_space(self) -> None:
        environment = self._filesystem.environment("root", sudo=True)
        docker = self.folder / "mock/bin/docker"
        if docker.exists() and self.path("/var/lib/docker/containers").is_dir():
            self.processes.run([str(docker), "_boot"], env=environment, cwd="/")
        user_data = self.state / "metadata" / "user-data"
        if user_data.exists():
            cloud_init.apply(user_data.read_text(), self)

    # --- for the SSH server and the boot ---

    def run_as_root(
        self, argv: list[str], *, stdin: bytes = b"", timeout_s: float = 900
    ) -> tuple[int, str]:
        """Run a program of the host as root; return its status and output."""
        environment = self._filesystem.environment("root", sudo=True)
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
        return self._filesystem.environment(user, extra_path=extra)

    def start_command(
        self, user: str, command: str | None, fds: list[int], terminal: Terminal | None
    ) -> Process:
        """Start the user's login shell for a session of the SSH server."""
        environment = self._environment(user)
        if terminal is not None:
            environment["TERM"] = terminal.term
        shell = self._filesystem.login_shell()
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
    """The exit status of a command, or minus the signal that ended it, and its output."""

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
