"""The lab's folder: what is decided once and kept, and what `enter` and `boot` read."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

USER = "dev"
FOLDERS = (
    *(
        f"disk/var/{name}"
        for name in (
            "empty",
            "lib/cloud",
            "lib/docker",
            "lib/google",
            "lib/nvidia",
            "lib/toolbox",
            "log",
            "tmp",
        )
    ),
    *("disk/etc/ssh", "disk/home", "keys", "memory", "root"),
)


@dataclass(frozen=True)
class Identity:
    """What stays the same over reboots: the port of sshd, its host key, the key that logs in."""

    port: int
    host_key: str
    identity: str


@dataclass(frozen=True)
class State:
    """Where everything of one lab lies.

    folder/disk     the stateful partition (var, home, stateful): survives a reboot
    folder/image    what the image has beside the machine's own programs: /etc and /usr/local
    folder/root     the empty folder on which the lab's / is mounted, seen from within its namespace only
    folder/keys     the client's key and the host's
    """

    folder: Path

    @property
    def disk(self) -> Path:
        """The stateful partition."""
        return self.folder / "disk"

    @property
    def image(self) -> Path:
        """The image."""
        return self.folder / "image"

    @property
    def local(self) -> Path:
        """What becomes /usr/local/lib/lab."""
        return self.image / "local" / "lib" / "lab"

    @property
    def console(self) -> Path:
        """What the machine prints while it boots, and sshd's log."""
        return self.folder / "console.log"

    def prepare(self, authorized_key: str | None, *, keygen: Path) -> Identity:
        """Make folders, keys (with `keygen`) and port where they are missing; the identity of the lab."""
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.disk / "var/tmp").chmod(0o1777)
        self.folder.chmod(0o711)
        for link, target in (("run", "/run"), ("lock", "/run/lock")):
            if not (path := self.disk / "var" / link).is_symlink():
                path.symlink_to(target)
        host_key = self.disk / "etc/ssh/ssh_host_ed25519_key"
        identity = self.folder / "keys" / "id_ed25519"
        for key in (host_key, identity):
            if not key.exists():
                subprocess.run(
                    [str(keygen), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)],
                    check=True,
                    timeout=60,
                )
        lines = [_public(identity), *([authorized_key.strip()] if authorized_key else [])]
        (self.folder / "keys" / "authorized_keys").write_text("\n".join(lines) + "\n")
        found = self.identity()
        if found is None:
            found = Identity(_free_port(), _public(host_key), str(identity))
            (self.folder / "identity.json").write_text(json.dumps(asdict(found)))
        return found

    def identity(self) -> Identity | None:
        """What `prepare` decided; None before."""
        try:
            return Identity(**json.loads((self.folder / "identity.json").read_text()))
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.folder)


def assignments(values: dict[str, str]) -> str:
    """Variables as a file that a POSIX shell reads."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def _public(key: Path) -> str:
    return " ".join(key.with_name(key.name + ".pub").read_text().split()[:2])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
