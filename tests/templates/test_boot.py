"""User-data and what it starts at a boot: units, seed of the boot scripts, host keys."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import TemplateError, UsageError
from provision.templating import METADATA_URL, USER_DATA_LIMIT_BYTES, boot_unit, render, user_data

BOOT_FILES = {
    "boot.sh": "#!/bin/sh\necho 'é \"$HOME\"'\n",
    "boot.d/10-host.sh": "step a 5 'true'\n",
}
SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]
every_shell = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: str(shell[0]))


def document(text: str) -> dict[str, Any]:
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def written(text: str) -> dict[str, str]:
    """The files that cloud-init writes, decoded."""
    return {
        entry["path"]: base64.b64decode(entry["content"], validate=True).decode()
        for entry in document(text)["write_files"]
    }


# --- user-data ------------------------------------------------------------------------------------


def test_user_data_has_only_keys_that_cos_applies_at_every_boot() -> None:
    text = user_data(BOOT_FILES)
    assert text.startswith("#cloud-config\n")
    assert set(document(text)) == {"write_files", "runcmd"}
    for entry in document(text)["write_files"]:
        assert set(entry) == {"path", "permissions", "encoding", "content"}
        assert entry["encoding"] == "b64"
        private = entry["path"].startswith("/etc/provision/seed/")
        assert entry["permissions"] == ("0600" if private else "0644"), (
            "a string: YAML would read a bare 0644 as 420"
        )
        assert entry["path"].startswith(("/etc/systemd/system/", "/etc/provision/")), (
            "the seed is in memory, so that no old one survives"
        )


def test_user_data_holds_units_and_seed() -> None:
    files = written(user_data(BOOT_FILES, timeout_s=77))
    assert files["/etc/systemd/system/provision-boot.service"] == boot_unit(timeout_s=77)
    assert files["/etc/provision/seed/boot.sh"] == BOOT_FILES["boot.sh"]
    assert files["/etc/provision/seed/boot.d/10-host.sh"] == BOOT_FILES["boot.d/10-host.sh"]
    assert METADATA_URL in files["/etc/systemd/system/provision-host-keys.service"]


def test_runcmd_places_seed_then_starts_units_without_waiting() -> None:
    assert document(user_data(BOOT_FILES))["runcmd"] == [
        ["sh", "/etc/provision/place-seed.sh"],
        ["systemctl", "daemon-reload"],
        ["systemctl", "start", "--no-block", "provision-host-keys.service"],
        ["systemctl", "start", "--no-block", "provision-boot.service"],
    ]


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_boot_script_in_user_data_is_unchanged(script: str) -> None:
    text = user_data({"boot.sh": script})
    assert written(text)["/etc/provision/seed/boot.sh"] == script
    assert set(document(text)) == {"write_files", "runcmd"}


def test_seed_outside_its_folder_is_refused() -> None:
    with pytest.raises(TemplateError, match="failed"):
        user_data({"../../etc/passwd": "x"})


def test_user_data_above_the_metadata_limit_is_refused() -> None:
    fits = "x" * (USER_DATA_LIMIT_BYTES * 3 // 4 - 8 * 1024)
    assert len(user_data({"boot.sh": fits})) <= USER_DATA_LIMIT_BYTES
    with pytest.raises(UsageError, match="256") as caught:
        user_data({"boot.sh": fits + "x" * 8 * 1024, "boot.d/10-host.sh": "small"})
    assert "boot.sh" in caught.value.why


@pytest.mark.skipif(
    "PROVISION_CLOUD_INIT" not in os.environ,
    reason="PROVISION_CLOUD_INIT names no cloud-init program",
)
def test_cloud_init_accepts_user_data(tmp_path: Path) -> None:
    def check(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "user-data").write_text(text, encoding="utf-8")
        command = [os.environ["PROVISION_CLOUD_INIT"], "schema", "-c", str(tmp_path / "user-data")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = check(user_data(BOOT_FILES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert check("#cloud-config\nwrite_files: 5\n").returncode != 0, "the check can fail"


# --- units ----------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    keys = render(
        "provision-host-keys.service.j2",
        {"metadata_url": "http://127.0.0.1:1/a b%c"},
        project_dir=None,
    )
    units = {"provision-boot.service": boot_unit(), "provision-host-keys.service": keys}

    def verify(units: dict[str, str]) -> subprocess.CompletedProcess[str]:
        for name, text in units.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        command = ["systemd-analyze", "verify", *(str(tmp_path / name) for name in units)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = verify(units)
    assert "provision-" not in done.stderr, done.stderr
    broken = verify({"provision-boot.service": boot_unit().replace("oneshot", "onceshot")})
    assert "provision-boot.service" in broken.stderr, "the check can fail"


def test_boot_unit_waits_for_docker_and_logs_to_the_console() -> None:
    unit = dict(
        line.split("=", 1)
        for line in boot_unit(timeout_s=900).splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert unit["Wants"] == unit["After"] == "gcr-online.target docker.socket"
    assert (unit["Type"], unit["RemainAfterExit"], unit["TimeoutStartSec"]) == (
        "oneshot",
        "yes",
        "900",
    )
    assert unit["ExecStart"] == "/bin/sh /var/lib/provision/boot.sh", (
        "an argument of sh: /var is mounted noexec"
    )
    assert unit["StandardOutput"] == "journal+console"


# --- the seed -------------------------------------------------------------------------------------


def script_file(folder: Path, template: str) -> Path:
    path = folder / template.removesuffix(".j2")
    path.write_text(render(template, {}, project_dir=None), encoding="utf-8")
    return path


@dataclass
class Machine:
    """A scratch root on which the files of user-data lie."""

    root: Path
    shell: list[str]

    @property
    def state(self) -> Path:
        return self.root / "var/lib/provision"

    def boot(self) -> None:
        for path, text in written(user_data(BOOT_FILES)).items():
            target = self.root / path.removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        env = {"PATH": os.defpath, "PROVISION_MOCK_ROOT": str(self.root)}
        subprocess.run(
            [*self.shell, self.root / "etc/provision/place-seed.sh"],
            env=env,
            check=True,
            capture_output=True,
        )

    def files(self) -> dict[str, str]:
        return {
            path.relative_to(self.state).as_posix(): path.read_text("utf-8")
            for path in self.state.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def machine(tmp_path: Path, shell: list[str]) -> Machine:
    return Machine(tmp_path / "a root 'with' blanks", shell)


@every_shell
def test_seed_does_not_replace_newer_scripts(machine: Machine) -> None:
    machine.boot()
    assert machine.files() == BOOT_FILES
    (machine.state / "boot.sh").write_text("newer")
    (machine.state / "boot.d/10-host.sh").unlink()
    machine.boot()
    assert machine.files() == {"boot.sh": "newer"}


@every_shell
def test_half_placed_seed_is_placed_again(machine: Machine) -> None:
    (machine.state / "boot.d").mkdir(parents=True)
    (machine.state / "boot.sh.new").write_text("#!/bin/s")
    (machine.state / "boot.sh").write_text("")
    machine.boot()
    assert machine.files() == BOOT_FILES


# --- host keys ------------------------------------------------------------------------------------


@dataclass
class Metadata:
    """A metadata server that takes guest attributes, or refuses them."""

    url: str = ""
    status: int = 200
    published: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    state = Metadata()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            allowed = self.headers["Metadata-Flavor"] == "Google" and state.status == 200
            if allowed:
                state.published.append((self.path, body))
            self.send_response(200 if allowed else state.status if state.status != 200 else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}/computeMetadata/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        server.shutdown()
        thread.join()


def new_key() -> str:
    """A public key line, without the comment."""
    return (
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        .decode()
    )


def fingerprint(key: str) -> str:
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass
class Publisher:
    """The script, a stand-in for `sshd -T`, and a scratch folder for keys."""

    folder: Path
    shell: list[str]
    metadata: Metadata

    def sshd(self, body: str) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        path = self.folder / "bin" / "sshd"
        path.write_text(f'#!/bin/sh\ncd "{self.folder}"\n{body}\n')
        path.chmod(0o755)

    def run(self, checks: int = 1, root: Path | None = None) -> subprocess.CompletedProcess[str]:
        script = script_file(self.folder, "publish-host-keys.sh")
        env = {"PATH": f"{self.folder / 'bin'}:{os.defpath}:/usr/sbin", "NO_PROXY": "127.0.0.1"}
        env |= {} if root is None else {"PROVISION_MOCK_ROOT": str(root)}
        command = [*self.shell, str(script), self.metadata.url, str(checks), "0"]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def publisher(tmp_path: Path, shell: list[str], metadata: Metadata) -> Publisher:
    if not all(shutil.which(tool) for tool in ("curl", "ssh-keygen")):
        pytest.skip("needs curl and ssh-keygen, as on Container-Optimized OS")
    folder = tmp_path / "a folder"
    folder.mkdir()
    return Publisher(folder, shell, metadata)


ATTRIBUTES = "/computeMetadata/v1/instance/guest-attributes/hostkeys"


@every_shell
def test_keys_that_sshd_serves_are_published_and_printed(publisher: Publisher) -> None:
    key, other = new_key(), new_key()
    (publisher.folder / "host key.pub").write_text(f"{key} root@vm\n")
    (publisher.folder / "second.pub").write_text(f"{other} root@vm\n")
    publisher.sshd(
        'echo port 22; echo "hostkey $PWD/host key"; echo hostkey $PWD/none\n'
        'echo "hostkey $PWD/second"'
    )
    done = publisher.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"provision-host-key {key} {fingerprint(key)}\n" in done.stdout
    assert (f"{ATTRIBUTES}/ssh-ed25519", key.split()[1]) in publisher.metadata.published
    assert other not in done.stdout, "sshd offers the first key of a type"


@every_shell
def test_replaced_key_is_published_again(publisher: Publisher) -> None:
    old, new = new_key(), new_key()
    (publisher.folder / "k.pub").write_text(f"{old}\n")
    (publisher.folder / "new").write_text(f"{new}\n")
    publisher.sshd(
        'echo "hostkey $PWD/k"; echo x >> calls; test "$(wc -l < calls)" -lt 3 || cp new k.pub'
    )
    assert publisher.run(checks=6).returncode == 0
    bodies = [
        body for path, body in publisher.metadata.published if path == f"{ATTRIBUTES}/ssh-ed25519"
    ]
    assert bodies == [old.split()[1], new.split()[1]], "each key once"


@every_shell
def test_known_folders_are_read_when_sshd_cannot_be_asked(publisher: Publisher) -> None:
    key = new_key()
    root = publisher.folder / "root"
    for folder, line in (("mnt/stateful_partition/etc/ssh", key), ("etc/ssh", new_key())):
        (root / folder).mkdir(parents=True)
        (root / folder / "ssh_host_ed25519_key.pub").write_text(f"{line}\n")
    publisher.sshd("echo the host of a mock asks no sshd >&2; exit 9")
    assert publisher.run(root=root).returncode == 0
    assert publisher.metadata.published == [(f"{ATTRIBUTES}/ssh-ed25519", key.split()[1])]


@every_shell
def test_key_is_printed_when_guest_attributes_are_refused(publisher: Publisher) -> None:
    key = new_key()
    (publisher.folder / "k.pub").write_text(f"{key}\n")
    publisher.sshd('echo "hostkey $PWD/k"')
    publisher.metadata.status = 404
    done = publisher.run()
    assert done.returncode == 0
    assert f"provision-host-key {key} {fingerprint(key)}\n" in done.stdout
    assert "not published as a guest attribute" in done.stdout


@every_shell
def test_missing_host_keys_fail(publisher: Publisher) -> None:
    done = publisher.run(checks=2, root=publisher.folder / "empty")
    assert done.returncode == 1
    assert "no public host key" in done.stderr


@every_shell
def test_every_shell_parses_the_boot_scripts(shell: list[str], tmp_path: Path) -> None:
    for template in ("place-seed.sh", "publish-host-keys.sh"):
        subprocess.run([*shell, "-n", script_file(tmp_path, template)], check=True)


@pytest.mark.lint
def test_shellcheck_accepts_the_boot_scripts(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.defpath}")
    if shellcheck is None:
        pytest.skip("shellcheck is part of the development lock file")
    scripts = [
        script_file(tmp_path, template) for template in ("place-seed.sh", "publish-host-keys.sh")
    ]
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
