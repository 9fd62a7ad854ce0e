"""The toolkit's own key pair."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from provision.core.errors import UsageError
from provision.hosts.key_pair import ensure_key_pair


def test_ssh_keygen_reads_private_and_public_key(tmp_path: Path) -> None:
    path = tmp_path / "state" / "key"
    public_line = ensure_key_pair(path)
    private = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert private.stdout.split()[:2] == public_line.split()[:2]
    assert path.with_name("key.pub").read_text() == public_line + "\n"
    assert public_line.startswith("ssh-ed25519 AAAA")
    assert path.stat().st_mode & 0o777 == 0o600


def test_second_call_returns_existing_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = ensure_key_pair(path)
    content = path.read_bytes()
    assert ensure_key_pair(path) == first
    assert path.read_bytes() == content


def test_concurrent_calls_return_the_same_key(tmp_path: Path) -> None:
    lines: list[str] = []
    threads = [
        threading.Thread(target=lambda: lines.append(ensure_key_pair(tmp_path / "key")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines) == 8
    assert len(set(lines)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"key", "key.pub", "key.lock"}


def test_missing_public_file_is_restored(tmp_path: Path) -> None:
    public_line, public = ensure_key_pair(tmp_path / "key"), tmp_path / "key.pub"
    public.unlink()
    assert ensure_key_pair(tmp_path / "key") == public_line
    assert public.read_text().strip() == public_line


def test_permissions_of_readable_private_key_are_tightened(tmp_path: Path) -> None:
    path = tmp_path / "key"
    ensure_key_pair(path)
    path.chmod(0o644)
    ensure_key_pair(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "not a key", "-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_foreign_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(UsageError, match="not a private key"):
        ensure_key_pair(tmp_path / "key")
    assert (tmp_path / "key").read_text() == content
