"""Files replaced as a whole, and locks between processes."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from provision.core.files import SHARED, file_lock, try_lock, write_atomically


def test_written_file_holds_the_new_content_and_no_other_is_left(tmp_path: Path) -> None:
    path = tmp_path / "vms.json"
    path.write_text("old")
    write_atomically(path, "new", durable=True)
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["vms.json"]


@pytest.mark.parametrize("mode", [0o600, SHARED])
def test_permissions_are_those_asked_for_less_the_umask(tmp_path: Path, mode: int) -> None:
    umask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", b"", mode=mode)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode & ~0o022


def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, "new")
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_second_holder_waits_until_the_first_has_released_the_lock(tmp_path: Path) -> None:
    events: list[str] = []

    def second() -> None:
        with file_lock(tmp_path / "new/lock"):
            events.append("second")

    with file_lock(tmp_path / "new/lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        events.append("first")
    thread.join(10)
    assert events == ["first", "second"]


def test_lock_that_another_holder_has_is_not_taken(tmp_path: Path) -> None:
    handle = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        with file_lock(tmp_path / "lock"):
            assert not try_lock(handle)
        assert try_lock(handle)
    finally:
        os.close(handle)
