"""The toolkit's own key pair."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from provision.core.errors import UsageError
from provision.hosts.key_pair import KeyPair, ensure_key


def test_ssh_keygen_reads_private_and_public_key(tmp_path: Path) -> None:
    pair = ensure_key(tmp_path / "state" / "key")
    private = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(pair.private_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert private.stdout.split()[:2] == pair.public_line.split()[:2]
    assert pair.public_path.read_text() == pair.public_line + "\n"
    assert pair.public_line.startswith("ssh-ed25519 AAAA")
    assert pair.private_path.stat().st_mode & 0o777 == 0o600


def test_second_call_returns_existing_key(tmp_path: Path) -> None:
    first = ensure_key(tmp_path / "key")
    content = first.private_path.read_bytes()
    assert ensure_key(tmp_path / "key") == first
    assert first.private_path.read_bytes() == content


def test_concurrent_calls_return_the_same_key(tmp_path: Path) -> None:
    pairs: list[KeyPair] = []
    threads = [
        threading.Thread(target=lambda: pairs.append(ensure_key(tmp_path / "key")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pairs) == 8
    assert len(set(pairs)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"key", "key.pub", "key.lock"}


def test_missing_public_file_is_restored(tmp_path: Path) -> None:
    pair = ensure_key(tmp_path / "key")
    pair.public_path.unlink()
    assert ensure_key(tmp_path / "key") == pair
    assert pair.public_path.read_text().strip() == pair.public_line


def test_permissions_of_readable_private_key_are_tightened(tmp_path: Path) -> None:
    pair = ensure_key(tmp_path / "key")
    pair.private_path.chmod(0o644)
    ensure_key(tmp_path / "key")
    assert pair.private_path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "not a key", "-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_foreign_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(UsageError, match="not a private key"):
        ensure_key(tmp_path / "key")
    assert (tmp_path / "key").read_text() == content
