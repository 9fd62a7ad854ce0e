"""What is sent to the container, and what becomes of what was sent before, under the shells an image may have."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from provision.dev import sync

SHELLS = [words for words in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0])]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    git_init(folder)
    return folder


def git_init(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


def start(shell: Sequence[str], workspace: Path, token: str) -> subprocess.Popen[bytes]:
    words = [*shell, "-c", sync._PRUNE, "provision", token]
    return subprocess.Popen(words, cwd=workspace, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def prune(shell: Sequence[str], workspace: Path, *names: str, status: int = 0) -> str:
    process = start(shell, workspace, "t0")
    _, err = process.communicate("".join(f"{name}\n" for name in names).encode(), timeout=30)
    assert process.returncode == status, err
    return err.decode()


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return found - {".provision/files"}


def test_what_is_gone_here_goes_there_and_the_rest_stays(shell: list[str], tmp_path: Path) -> None:
    odd = ["-rf", "a b*", "deep/'quoted'", "back\\slash", "ü", "[a-z]"]
    assert prune(shell, tmp_path, "kept", *odd) == ""
    write(tmp_path, "kept", "made-there", "az", *odd)
    assert prune(shell, tmp_path, "kept", "new") == ""
    assert files(tmp_path) == {"kept", "made-there", "az"}
    assert prune(shell, tmp_path) == ""
    assert files(tmp_path) == {"made-there", "az"}


def test_a_file_becomes_a_folder(shell: list[str], tmp_path: Path) -> None:
    prune(shell, tmp_path, "a", "b")
    write(tmp_path, "a", "b")
    prune(shell, tmp_path, "a/x", "b")
    assert files(tmp_path) == {"b"}
    write(tmp_path, "a/x")
    prune(shell, tmp_path, "a/x", "b")
    assert files(tmp_path) == {"a/x", "b"}


def test_a_folder_becomes_a_file_with_its_bytecode_gone(shell: list[str], tmp_path: Path) -> None:
    prune(shell, tmp_path, "a/b/x.py")
    write(tmp_path, "a/b/x.py", "a/b/__pycache__/x.pyc")
    prune(shell, tmp_path, "a")
    assert not (tmp_path / "a").exists()


def test_what_a_program_wrote_is_not_removed_for_a_file(shell: list[str], tmp_path: Path) -> None:
    prune(shell, tmp_path, "a/x.py")
    write(tmp_path, "a/x.py", "a/model.bin")
    assert "a is a file here and a folder there" in prune(shell, tmp_path, "a", status=1)
    assert files(tmp_path) == {"a/model.bin"}
    (tmp_path / "a/model.bin").unlink()
    prune(shell, tmp_path, "a")
    assert not (tmp_path / "a").exists()


def test_a_folder_that_a_program_made_of_a_sent_file_stays(shell: list[str], tmp_path: Path) -> None:
    prune(shell, tmp_path, "a", "b")
    write(tmp_path, "a/made", "b")
    prune(shell, tmp_path, "b")
    assert files(tmp_path) == {"a/made", "b"}


def test_two_at_once_remove_nothing_that_both_have(shell: list[str], tmp_path: Path) -> None:
    names = [f"file {number}" for number in range(300)]
    prune(shell, tmp_path, *names)
    write(tmp_path, *names)
    listed = "".join(f"{name}\n" for name in names).encode()
    for _ in range(5):
        running = [start(shell, tmp_path, f"t{index}") for index in range(4)]
        for process in running:
            assert process.stdin
            process.stdin.write(listed)
            process.stdin.close()
        assert [process.wait(30) for process in running] == [0] * 4
        for process in running:
            assert process.stdout
            assert process.stderr
            process.stdout.close()
            process.stderr.close()
    assert files(tmp_path) == set(names)


def test_thousands_of_files_take_no_process_each(shell: list[str], tmp_path: Path) -> None:
    names = [f"folder/file{number}" for number in range(3000)]
    prune(shell, tmp_path, *names)
    before = os.times()
    started = time.monotonic()
    prune(shell, tmp_path, *names)
    after = os.times()
    assert (after.children_user + after.children_system) - (before.children_user + before.children_system) < 1.0
    assert time.monotonic() - started < 20


def test_the_list_is_kept_when_the_new_one_cannot_be_had(shell: list[str], tmp_path: Path) -> None:
    prune(shell, tmp_path, "a")
    write(tmp_path, "a")
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "sort").write_text("#!/bin/sh\nexit 2\n")
    (broken / "sort").chmod(0o755)
    if shell[0] == "busybox":
        pytest.skip("its sort is its own")
    environ = {**os.environ, "PATH": f"{broken}:{os.environ['PATH']}"}
    words = [*shell, "-c", sync._PRUNE, "provision", "t1"]
    done = subprocess.run(words, cwd=tmp_path, env=environ, input=b"b\n", capture_output=True, timeout=30, check=False)
    assert done.returncode == 2
    assert (tmp_path / "a").exists()
    assert [path.name for path in (tmp_path / ".provision").iterdir()] == ["files"]
    assert (tmp_path / ".provision/files").read_text() == "a\n"


def test_a_repository_inside_says_itself_which_files_are_its_own(project: Path) -> None:
    write(project, "a.py", "inner/b.py", "inner/.gitignore", "inner/ignored")
    (project / "inner/.gitignore").write_text("ignored\n")
    git_init(project / "inner")
    (project / "link").symlink_to("inner")
    assert sync.project_files(project) == ["a.py", "inner/.gitignore", "inner/b.py", "link"]


def test_a_submodule_that_was_not_checked_out_is_nothing(project: Path) -> None:
    write(project, "a.py")
    (project / "lib").mkdir()
    entry = "160000,0123456789012345678901234567890123456789,lib"
    subprocess.run(["git", "-C", str(project), "update-index", "--add", "--cacheinfo", entry], check=True)
    assert sync.project_files(project) == ["a.py"]


def test_the_names_come_before_the_files_which_are_roots(project: Path) -> None:
    write(project, "a.py", "b c")
    listed, packed = sync.pack(project, ["a.py", "b c"])
    assert listed == b"a.py\nb c\n\n"
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert [(member.name, member.uid, member.gid, member.uname) for member in tar] == [("a.py", 0, 0, ""), ("b c", 0, 0, "")]
