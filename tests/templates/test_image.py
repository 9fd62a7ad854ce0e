"""The settings of an image, and its build context."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from provision.core.errors import SettingsError, UsageError
from provision.core.worker_environment import threads_per_worker
from provision.image import context
from provision.image.context import (
    build_context,
    context_digest,
    is_ignored,
    parse_dockerignore,
    read_context_dir,
)
from provision.image.dockerfile import (
    Family,
    ImageSpec,
    dockerfile,
    image_reference,
    prepare,
)

# --- the specification ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "base"),
    [
        (ImageSpec(), "apache/beam_python3.11_sdk:2.77.0"),
        (ImageSpec(python="3.13", beam="2.76.0"), "apache/beam_python3.13_sdk:2.76.0"),
        (ImageSpec(family=Family.PYTORCH), "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"),
        (
            ImageSpec(family=Family.PYTORCH, python="3.12"),
            "pytorch/pytorch:2.10.0-cuda12.8-cudnn9-runtime",
        ),
        (ImageSpec(family=Family.TENSORFLOW), "tensorflow/tensorflow:2.19.0-gpu"),
        (
            ImageSpec(family=Family.CUDA, python="3.10"),
            "nvidia/cuda:12.8.1-cudnn-runtime-ubuntu22.04",
        ),
        (
            ImageSpec(family=Family.CUDA, python="3.12", base_image="mine:5000/cuda:1"),
            "mine:5000/cuda:1",
        ),
        (ImageSpec(family=Family.CUDA, python="3.13", base_image="mine/cuda:1"), "mine/cuda:1"),
    ],
)
def test_base_image_follows_family_and_python(spec: ImageSpec, base: str) -> None:
    assert spec.base == base
    assert dockerfile(spec).startswith(f"FROM {base}\n")


def test_python_without_base_image_lists_the_available_ones() -> None:
    with pytest.raises(SettingsError) as caught:
        ImageSpec(family=Family.CUDA, python="3.11")
    assert "3.10 or 3.12" in caught.value.why
    assert "worker.base=beam" in caught.value.fix


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"python": "3"}, "worker.python"),
        ({"python": "3.11.2"}, "worker.python"),
        ({"python": "2.7"}, "worker.python"),
        ({"beam": "latest"}, "worker.beam"),
        ({"beam": "2.77"}, "worker.beam"),
        ({"threads": 0}, "worker.threads"),
        ({"base_image": "pytorch/pytorch"}, "worker.base_image"),
        ({"base_image": "pytorch/pytorch:latest"}, "worker.base_image"),
        ({"base_image": "localhost:5000/x"}, "worker.base_image"),
        ({"base_image": "x:1\nRUN id"}, "worker.base_image"),
        ({"boot_image": "apache/beam:latest"}, "worker.boot_image"),
        ({"env": {"LD_LIBRARY_PATH": "/mine"}}, "worker.env.LD_LIBRARY_PATH"),
    ],
)
def test_invalid_image_setting_is_refused_by_name(
    changed: Mapping[str, object], where: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        ImageSpec(**changed)  # type: ignore[arg-type]
    assert caught.value.where == where


def test_base_image_may_be_pinned_by_digest() -> None:
    digest = "gcr.io/p/i@sha256:" + "a" * 64
    assert ImageSpec(base_image=digest).base == digest


def test_user_environment_replaces_defaults() -> None:
    env = ImageSpec(threads=4, env={"OMP_NUM_THREADS": "2"}).values()["env"]
    assert env == {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "4",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


@pytest.mark.parametrize(
    ("cores", "workers", "threads"),
    [(16, 16, 1), (16, 8, 2), (16, 5, 3), (4, 16, 1), (8, 1, 8), (8, 0, 8)],
)
def test_threads_per_worker_share_the_cores(cores: int, workers: int, threads: int) -> None:
    assert threads_per_worker(cores, workers) == threads


def test_image_reference_changes_with_the_settings_only(tmp_path: Path) -> None:
    once, again = (prepare(ImageSpec(), project_dir=None) for _ in range(2))
    assert once == again
    assert once.reference == f"provision/worker:{once.digest[:12]}"
    references = {
        prepare(spec, project_dir=None).reference
        for spec in (ImageSpec(), ImageSpec(threads=2), ImageSpec(requirements="numpy"))
    }
    assert len(references) == 3
    (tmp_path / "code.py").write_text("x")
    assert prepare(ImageSpec(), project_dir=None, context_dir=tmp_path).digest != once.digest
    assert image_reference("0123456789abcdef", "r.io/p/w") == "r.io/p/w:0123456789ab"


# --- the context ----------------------------------------------------------------------------------


def unpack(packed: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {entry.name: entry for entry in archive.getmembers()}


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name, encoding="utf-8")
    return root


def test_context_without_folder_holds_the_rendered_files() -> None:
    with tarfile.open(fileobj=io.BytesIO(build_context("FROM x:1\n", "numpy\n", None))) as archive:
        files = {
            entry.name: (archive.extractfile(entry) or io.BytesIO()).read() for entry in archive
        }
    assert files == {"Dockerfile": b"FROM x:1\n", "requirements.txt": b"numpy\n"}
    assert set(unpack(build_context("FROM x:1\n", " \n", None))) == {"Dockerfile"}


def test_archive_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    names = ["b/é x.py", "a.py", "b/c/d", "run"]
    one, two = (
        tree(tmp_path / "1", *names),
        tree(tmp_path / "2", *random.Random(1).sample(names, len(names))),
    )
    for root, mode, age in ((one, 0o755, 0), (two, 0o711, 10**9)):
        (root / "run").chmod(mode)
        (root / "a.py").chmod(0o600 if age else 0o664)
        os.utime(root / "a.py", (age, age))
        (root / "link").symlink_to("b/c")
    packed = build_context("FROM x:1\n", "", one)
    assert packed == build_context("FROM x:1\n", "", two)
    entries = unpack(packed)
    assert list(entries) == sorted(["Dockerfile", "link", *names])
    assert {(entry.uid, entry.gid, entry.mtime, entry.uname) for entry in entries.values()} == {
        (0, 0, 0, "")
    }
    assert (entries["run"].mode, entries["a.py"].mode) == (0o755, 0o644)
    assert (entries["link"].type, entries["link"].linkname) == (tarfile.SYMTYPE, "b/c")


def test_digest_does_not_depend_on_compression() -> None:
    packed = build_context("FROM x:1\n", "", None)
    assert context_digest(gzip.compress(gzip.decompress(packed), 1)) == context_digest(packed)
    assert context_digest(build_context("FROM x:2\n", "", None)) != context_digest(packed)


def test_file_that_a_generated_one_would_replace_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, "Dockerfile", "src/Dockerfile")
    with pytest.raises(UsageError, match="generated") as caught:
        build_context("FROM x:1\n", "", tmp_path)
    assert "/Dockerfile" in caught.value.fix
    (tmp_path / ".dockerignore").write_text("/Dockerfile\n")
    assert set(unpack(build_context("FROM x:1\n", "", tmp_path))) == {
        "Dockerfile",
        "src/Dockerfile",
    }
    (tmp_path / ".dockerignore").unlink()
    assert set(unpack(build_context("Dockerfile", "", tmp_path))) == {
        "Dockerfile",
        "src/Dockerfile",
    }, "equal texts do not conflict"


def test_context_above_the_limit_lists_the_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "CONTEXT_LIMIT_BYTES", 3 * 2**20)
    for name, mib in (("model.bin", 2), ("data/x.csv", 1)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(mib * 2**20))
    assert len(read_context_dir(tmp_path)) == 2
    tree(tmp_path, "tiny.py")
    with pytest.raises(UsageError) as caught:
        read_context_dir(tmp_path)
    assert [line.split()[-1] for line in caught.value.why.splitlines()[1:]] == [
        "model.bin",
        "data/x.csv",
        "tiny.py",
    ]
    (tmp_path / ".dockerignore").write_text("data\n")
    assert [file.path for file in read_context_dir(tmp_path)] == ["model.bin", "tiny.py"]


def test_special_file_in_the_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        read_context_dir(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file"):
        read_context_dir(tmp_path)


def test_default_ignore_rules_leave_out_caches(tmp_path: Path) -> None:
    tree(tmp_path, ".git/HEAD", ".venv/x", "pkg/__pycache__/a.pyc", "pkg/a.py", ".env", "lib.pyc")
    assert [file.path for file in read_context_dir(tmp_path)] == [".env", "pkg/a.py"]


# --- .dockerignore --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "ignored", "kept"),
    [
        ("", [], ["a", "a/b"]),
        ("# a\n\n  \n", [], ["a", "# a"]),
        ("a", ["a", "a/b", "a/b/c"], ["b/a", "ab"]),
        ("/a/", ["a", "a/b"], ["b/a"]),
        ("./a//b", ["a/b"], ["a"]),
        ("*.py", ["x.py", ".py"], ["d/x.py", "x.pyc"]),
        ("*/x", ["d/x", "d/x/y"], ["x", "d/e/x"]),
        ("**/x", ["x", "d/x", "d/e/x", "d/x/y"], ["dx"]),
        ("**/*.py", ["x.py", "d/e/x.py"], ["x.pyc"]),
        ("d/**", ["d/x", "d/e/x"], ["e"]),
        ("a?c", ["abc"], ["ac", "a/c"]),
        ("[ab].txt", ["a.txt"], ["c.txt"]),
        ("[^a].txt", ["b.txt"], ["a.txt"]),
        ("a.c", ["a.c"], ["abc"]),
        ("*\n!keep", ["a", "a/keep"], ["keep", "keep/x"]),
        ("d\n!d/keep\nd/keep/not", ["d/x", "d/keep/not"], ["d/keep", "d/keep/x"]),
        ("!a\na", ["a"], []),
        ("**", ["a", "a/b"], []),
        ("ünï *", ["ünï code"], ["x"]),
    ],
)
def test_ignore_rules_match_as_in_docker(rules: str, ignored: list[str], kept: list[str]) -> None:
    parsed = parse_dockerignore(rules, where="x")
    assert [path for path in [*ignored, *kept] if is_ignored(path, parsed)] == ignored


@pytest.mark.parametrize("rule", ["a\\b", "../x", "a/../b", "[z-a]"])
def test_unsupported_ignore_rule_is_reported_with_its_line(rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_dockerignore(f"fine\n{rule}\n", where="p/.dockerignore")
    assert caught.value.where == "p/.dockerignore:2"


def test_exception_keeps_a_file_of_an_ignored_folder(tmp_path: Path) -> None:
    tree(tmp_path, "d/keep/a", "d/b", "c")
    (tmp_path / ".dockerignore").write_text("d\n!d/keep\n")
    assert [file.path for file in read_context_dir(tmp_path)] == ["c", "d/keep/a"]
