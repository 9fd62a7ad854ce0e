"""The archive of the project's files, and how three shells place and remove them."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from provision.core.errors import UsageError
from provision.core.shell import shell_text
from provision.sync import project_tar

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


def words_of(shell: Sequence[str], stage: str) -> list[str]:
    return [*shell, "-c", shell_text(project_tar.HERE / "place.sh"), "provision", stage]


def make_stage(workspace: Path, token: str, names: Sequence[str]) -> str:
    """A staging folder as `docker cp` leaves it: the files and the list of their names."""
    stage = f".provision/in.{token}"
    (workspace / stage / "files").mkdir(parents=True)
    write(workspace / stage / "files", *names)
    (workspace / stage / "names").write_text("".join(f"{name}\n" for name in names))
    return stage


def send(shell: Sequence[str], workspace: Path, *names: str, status: int = 0) -> str:
    words = words_of(shell, make_stage(workspace, "t0", names))
    done = subprocess.run(
        words, cwd=workspace, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == status, done.stderr
    assert [path.name for path in (workspace / ".provision").iterdir()] in ([], ["files"]), (
        "no file of the transfer remains"
    )
    return done.stderr


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return found - {".provision/files"}


def test_file_deleted_locally_is_removed_and_other_files_stay(
    shell: list[str], tmp_path: Path
) -> None:
    odd = ["-rf", "a b*", "deep/'quoted'", "back\\slash", "ü", "[a-z]"]
    assert send(shell, tmp_path, "kept", *odd) == ""
    assert files(tmp_path) == {"kept", *odd}
    write(tmp_path, "made-there", "az", "deep/made")
    assert send(shell, tmp_path, "kept", "deep/new") == ""
    assert files(tmp_path) == {"kept", "deep/new", "made-there", "az", "deep/made"}
    assert send(shell, tmp_path) == ""
    assert files(tmp_path) == {"made-there", "az", "deep/made"}


def test_file_can_become_a_folder(shell: list[str], tmp_path: Path) -> None:
    send(shell, tmp_path, "a", "b")
    send(shell, tmp_path, "a/x", "b")
    assert files(tmp_path) == {"a/x", "b"}


def test_folder_with_only_bytecode_can_become_a_file(shell: list[str], tmp_path: Path) -> None:
    send(shell, tmp_path, "a/b/x.py")
    write(tmp_path, "a/b/__pycache__/x.pyc")
    send(shell, tmp_path, "a")
    assert files(tmp_path) == {"a"}


def test_folder_with_other_files_does_not_become_a_file(shell: list[str], tmp_path: Path) -> None:
    send(shell, tmp_path, "a/x.py")
    write(tmp_path, "a/model.bin")
    assert "a is a file here and a folder there" in send(shell, tmp_path, "a", status=1)
    assert files(tmp_path) == {"a/model.bin"}
    (tmp_path / "a/model.bin").unlink()
    send(shell, tmp_path, "a")
    assert files(tmp_path) == {"a"}


def test_folder_that_replaced_a_sent_file_stays(shell: list[str], tmp_path: Path) -> None:
    send(shell, tmp_path, "a", "b")
    (tmp_path / "a").unlink()
    write(tmp_path, "a/made")
    send(shell, tmp_path, "b")
    assert files(tmp_path) == {"a/made", "b"}


def test_concurrent_archives_lose_no_common_file(shell: list[str], tmp_path: Path) -> None:
    names = [f"folder{number // 50}/file {number}" for number in range(120)]
    send(shell, tmp_path, *names)
    for _ in range(3):
        stages = [make_stage(tmp_path, f"t{index}", names) for index in range(4)]
        running = [subprocess.Popen(words_of(shell, stage), cwd=tmp_path) for stage in stages]
        assert [process.wait(30) for process in running] == [0] * 4
    assert files(tmp_path) == set(names)


def test_open_file_keeps_its_content(shell: list[str], tmp_path: Path) -> None:
    send(shell, tmp_path, "a")
    with (tmp_path / "a").open() as before:
        send(shell, tmp_path, "a")
        assert os.fstat(before.fileno()).st_ino != (tmp_path / "a").stat().st_ino
        assert before.read() == "a"


@pytest.mark.slow
def test_thousands_of_files_are_placed_with_few_processes(shell: list[str], tmp_path: Path) -> None:
    names = [f"folder/file{number:04}" for number in range(3000)]
    send(shell, tmp_path, *names)
    before = os.times()
    send(shell, tmp_path, *names[1500:])
    after = os.times()
    assert files(tmp_path) == set(names[1500:])
    assert (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    ) < 1.5


def test_failed_comparison_of_the_lists_removes_nothing(shell: list[str], tmp_path: Path) -> None:
    if shell[0] == "busybox":
        pytest.skip("its sort is its own")
    send(shell, tmp_path, "a")
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "sort").write_text("#!/bin/sh\nexit 2\n")
    (broken / "sort").chmod(0o755)
    environ = {**os.environ, "PATH": f"{broken}:{os.environ['PATH']}"}
    words = words_of(shell, make_stage(tmp_path, "t1", ["b"]))
    done = subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert (tmp_path / "a").exists()
    assert (tmp_path / ".provision/files").read_text() == "a\n"


def test_files_are_placed_as_root(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$1 $2 $3" >>"${0%/*}/called"\n')
    docker.chmod(0o755)
    text = f"R={tmp_path}\n{project_tar.receive('worker', project_tar.new_stage()).render()}"
    subprocess.run(
        ["sh", "-c", text],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        input=b"",
        check=True,
        timeout=20,
    )
    assert (tmp_path / "called").read_text() == "cp - worker:/workspace\nexec --user 0\n"


def test_nested_repository_lists_its_own_files(project: Path) -> None:
    write(project, "a.py", "inner/b.py", "inner/.gitignore", "inner/ignored")
    (project / "inner/.gitignore").write_text("ignored\n")
    git_init(project / "inner")
    (project / "link").symlink_to("inner")
    assert project_tar.project_files(project) == ["a.py", "inner/.gitignore", "inner/b.py", "link"]


def test_submodule_that_is_not_checked_out_has_no_files(project: Path) -> None:
    write(project, "a.py")
    (project / "lib").mkdir()
    entry = "160000,0123456789012345678901234567890123456789,lib"
    subprocess.run(
        ["git", "-C", str(project), "update-index", "--add", "--cacheinfo", entry], check=True
    )
    assert project_tar.project_files(project) == ["a.py"]


def test_archive_holds_names_and_files_owned_by_root(project: Path) -> None:
    write(project, "a.py", "b c")
    with tarfile.open(fileobj=io.BytesIO(project_tar.pack(project, ["a.py", "b c"], "in"))) as tar:
        members = {member.name: (member.uid, member.gid, member.uname) for member in tar}
        listed = tar.extractfile("in/names")
        assert listed is not None
        assert listed.read() == b"a.py\nb c\n"
    assert members == dict.fromkeys(
        [".provision", "in", "in/files", "in/names", "in/files/a.py", "in/files/b c"], (0, 0, "")
    )


def test_file_name_with_line_break_is_refused(project: Path) -> None:
    with pytest.raises(UsageError, match="line break"):
        project_tar.pack(project, ["a\nb"], "in")
