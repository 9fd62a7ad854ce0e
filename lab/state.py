"""The lab's folder: keys and port, which are kept, and the files that `enter` and `boot` read."""

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
    """What reboots keep: the port of sshd, its host key, the path of the login key."""

    port: int
    host_key: str
    identity: str


@dataclass(frozen=True)
class State:
    """The files of one lab.

    folder/disk     the stateful partition (var, home, etc), which reboots keep
    folder/image    /etc and /usr/local of the image
    folder/root     the mount point of the lab's /, visible in its namespace only
    folder/keys     the login key and the authorized keys
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
        """The folder that is /usr/local/lib/lab in the lab."""
        return self.image / "local" / "lib" / "lab"

    @property
    def console(self) -> Path:
        """The output of the boot, and sshd's log."""
        return self.folder / "console.log"

    def prepare(self, authorized_key: str | None, *, keygen: Path) -> Identity:
        """Create missing folders, keys (with `keygen`) and the port; return the identity."""
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
        """The identity that `prepare` created; None before."""
        try:
            return Identity(**json.loads((self.folder / "identity.json").read_text()))
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.folder)


def assignments(values: dict[str, str]) -> str:
    """Shell assignments, one a line."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def _public(key: Path) -> str:
    return " ".join(key.with_name(key.name + ".pub").read_text().split()[:2])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
