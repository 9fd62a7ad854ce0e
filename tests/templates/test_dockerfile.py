"""The Dockerfiles of the worker: what Dataflow demands of an image, and quoting of values."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.core.errors import TemplateError
from provision.image.dockerfile import BASE_IMAGES, Copy, Family, ImageSpec, dockerfile

HADOLINT = Path(sys.executable).with_name("hadolint")
DRIVER = "/usr/local/nvidia"


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile, without comments, lines joined at a trailing backslash."""
    joined, found = "", []
    for line in text.split("\n"):  # at nothing else: Docker knows no U+2028
        if line.lstrip().startswith("#") or (joined and not line.strip()):
            continue
        continued = re.sub(r"\\[ \t]*$", "", line)
        joined += continued
        if continued == line and joined.strip():
            word, _, rest = joined.strip().partition(" ")
            found.append(Instruction(word, rest.strip()))
            joined = ""
    assert not joined, "ends inside an instruction"
    return found


def words(rest: str) -> Iterator[str]:
    """The words of ENV or LABEL, split at blanks that are neither quoted nor escaped."""
    word, quoted, chars = "", "", iter(rest)
    for char in chars:
        if not quoted and char.isspace():
            if word:
                yield word
            word = ""
            continue
        if char in "\"'" and quoted in ("", char):
            quoted = "" if quoted else char
        word += char + (next(chars, "") if char == "\\" and quoted != "'" else "")
    if word:
        yield word


def expand(word: str, env: Mapping[str, str]) -> str:
    """Docker's own expansion of a word: quotes, `\\`, `$NAME`, `${NAME}` and `${NAME:+WORD}`."""
    out, quoted, at = "", "", 0
    while at < len(word):
        char = word[at]
        at += 1
        if char in "\"'" and quoted in ("", char):
            quoted = "" if quoted else char
        elif char == "\\" and quoted != "'" and at < len(word):
            escapable = not quoted or word[at] in '"$\\'
            out += word[at] if escapable else char + word[at]
            at += 1
        elif char == "$" and quoted != "'":
            found = re.compile(r"\{(\w+)(?::\+((?:\$\w+|[^}$])*))?\}|(\w+)").match(word, at)
            assert found is not None, f"Docker refuses {word!r}"
            value = env.get(found[1] or found[3], "")
            out += (
                expand(found[2], env)
                if value and found[2] is not None
                else ("" if found[2] is not None else value)
            )
            at = found.end()
        else:
            out += char
    assert not quoted, f"unbalanced quotes in {word!r}"
    return out


def environment(text: str, base: Mapping[str, str]) -> dict[str, str]:
    """The image's environment, given the base image's."""
    env = dict(base)
    for instruction in instructions(text):
        if instruction.word == "ENV":
            before = dict(env)  # one instruction sees the values from before it
            for word in words(instruction.rest):
                name, equals, value = word.partition("=")
                assert equals, f"{word!r} is not NAME=VALUE"
                env[name] = expand(value, before)
    return env


BARE = [
    ImageSpec(family=family, python=python)
    for family, python in [
        (Family.BEAM, "3.11"),
        (Family.BEAM, "3.14"),
        *((family, python) for family in BASE_IMAGES for python in BASE_IMAGES[family]),
    ]
]
FULL = [
    replace(
        spec,
        apt=("git", "ffmpeg"),
        requirements="numpy==2.1\n",
        env={"GREETING": 'say "hi" to \\ $USER', "EMPTY": ""},
        threads=3,
        copies=(Copy("src dir", "app"), Copy("model.pt", "/models/")),
        imports=("numpy",),
    )
    for spec in BARE
]
ALL = [*BARE, *FULL]
both = pytest.mark.parametrize(
    "spec", ALL, ids=lambda spec: f"{spec.family}-{spec.python}-{'full' if spec.apt else 'bare'}"
)


def last(text: str, word: str) -> str:
    return [instruction.rest for instruction in instructions(text) if instruction.word == word][-1]


def runs(text: str) -> list[str]:
    return [instruction.rest for instruction in instructions(text) if instruction.word == "RUN"]


# --- what Dataflow demands ------------------------------------------------------------------------


@both
def test_entrypoint_is_the_boot_program_without_cmd_and_user(spec: ImageSpec) -> None:
    text = dockerfile(spec)
    assert json.loads(last(text, "ENTRYPOINT")) == ["/opt/apache/beam/boot"]
    assert {"CMD", "USER", "SHELL", "ONBUILD"}.isdisjoint(
        instruction.word for instruction in instructions(text)
    )


@both
def test_base_image_is_pinned(spec: ImageSpec) -> None:
    first = instructions(dockerfile(spec))[0]
    assert first == Instruction("FROM", spec.base)
    references = [spec.base, *re.findall(r"--from=(\S+)", dockerfile(spec))]
    assert all(
        re.search(r":[^/:]+$", reference) and not reference.endswith(":latest")
        for reference in references
    )


@both
def test_boot_program_has_the_release_of_apache_beam(spec: ImageSpec) -> None:
    sdk = (
        spec.base
        if spec.family is Family.BEAM
        else re.search(r"COPY --from=(\S+) /opt/apache/beam /opt/apache/beam\n", dockerfile(spec))
    )
    assert (
        sdk if isinstance(sdk, str) else sdk and sdk[1]
    ) == f"apache/beam_python{spec.python}_sdk:{spec.beam}"
    for install in re.findall(r'"apache-beam\[gcp\]==([^"]+)"', dockerfile(spec)):
        assert install == spec.beam


@both
def test_beam_is_installed_unless_the_base_has_it(spec: ImageSpec) -> None:
    installs = [run for run in runs(dockerfile(spec)) if "pip install" in run]
    assert len(installs) == (0 if spec.family is Family.BEAM and not spec.requirements else 1)
    assert all("--no-cache-dir" in run and "--upgrade" not in run for run in installs)


@both
def test_driver_folders_come_first_on_both_paths(spec: ImageSpec) -> None:
    text = dockerfile(spec)
    plain = environment(text, {"PATH": "/usr/bin"})
    assert plain["PATH"] == f"{DRIVER}/bin:/usr/bin"
    assert plain["LD_LIBRARY_PATH"] == f"{DRIVER}/lib64", (
        "an empty entry would put the working folder on the loader's path"
    )
    cuda = environment(
        text, {"PATH": "/opt/conda/bin", "LD_LIBRARY_PATH": "/usr/local/cuda/compat:/x"}
    )
    assert cuda["LD_LIBRARY_PATH"] == f"{DRIVER}/lib64:/usr/local/cuda/compat:/x", (
        "a libcuda of the image must not hide the driver's"
    )


@both
def test_threads_and_memory_growth_are_set(spec: ImageSpec) -> None:
    env = environment(dockerfile(spec), {"PATH": ""})
    assert {
        env[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    } == {str(spec.threads)}
    assert env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert env["PIP_BREAK_SYSTEM_PACKAGES"] == "1"


@both
def test_build_ends_with_checks_of_packages_and_boot_program(spec: ImageSpec) -> None:
    proof = runs(dockerfile(spec))[-1]
    for step in (
        "python -m pip check",
        "-m venv --system-site-packages",
        "apache_beam.__version__",
        "test -x /opt/apache/beam/boot",
    ):
        assert step in proof
    framework = {Family.PYTORCH: "torch", Family.TENSORFLOW: "tensorflow"}.get(spec.family)
    assert framework is None or f"import {framework}, " in proof
    assert "numpy, " in proof or not spec.imports


@both
def test_apt_lists_are_removed(spec: ImageSpec) -> None:
    for run in runs(dockerfile(spec)):
        if "apt-get" in run:
            assert "--no-install-recommends" in run
            assert run.endswith("rm -rf /var/lib/apt/lists/*")
            assert re.search(r"DEBIAN_FRONTEND=noninteractive", run)


@both
def test_dockerfile_uses_only_legacy_builder_syntax(spec: ImageSpec) -> None:
    text = dockerfile(spec)
    assert not re.search(
        r"--(mount|link|chmod|network|security|parents|exclude|checksum|platform)\b", text
    )
    assert "<<" not in text
    assert not re.match(r"#\s*(syntax|escape|check)\s*=", text)
    known = {"FROM", "RUN", "COPY", "ENV", "LABEL", "WORKDIR", "ENTRYPOINT"}
    assert {instruction.word for instruction in instructions(text)} <= known


@both
def test_run_instructions_parse_as_posix_shell(spec: ImageSpec) -> None:
    for run in runs(dockerfile(spec)):
        done = subprocess.run(["sh", "-n"], input=run, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{run}\n{done.stderr}"


@pytest.mark.lint
@both
def test_hadolint_accepts_the_dockerfile(spec: ImageSpec, tmp_path: Path) -> None:
    if not HADOLINT.exists():
        pytest.skip("hadolint is part of the development lock file")
    done = subprocess.run(
        [HADOLINT, "--no-color", "-"],
        input=dockerfile(spec),
        text=True,
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_ignores_have_a_reason_above() -> None:
    for spec in ALL:
        lines = dockerfile(spec).splitlines()
        for number, line in enumerate(lines):
            if "hadolint ignore" in line:
                assert line == "# hadolint ignore=DL3008"
                assert lines[number - 1].startswith("# Debian's archives")


# --- the checks in it really check ----------------------------------------------------------------


def run_with_python(command: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "bin").mkdir(exist_ok=True)
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {"PATH": f"{tmp_path / 'bin'}:{os.defpath}"}
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=env, check=False
    )


def test_build_fails_with_another_python_in_the_base(tmp_path: Path) -> None:
    mine = f"3.{sys.version_info.minor}"
    right = run_with_python(runs(dockerfile(ImageSpec(python=mine)))[0], tmp_path)
    assert (right.returncode, right.stderr) == (0, "")
    wrong = run_with_python(runs(dockerfile(ImageSpec(python="3.99")))[0], tmp_path)
    assert wrong.returncode != 0
    assert f"the base image has Python {mine}, the launcher 3.99" in wrong.stderr


def test_framework_of_the_base_is_kept(tmp_path: Path) -> None:
    spec = ImageSpec(family=Family.PYTORCH, python="3.11", requirements="torch==1.0\n")
    install = next(run for run in runs(dockerfile(spec)) if "pip install" in run)
    frozen, _, pip = install.partition("&& python -m pip install")
    assert "--constraint /tmp/base.txt" in pip
    freeze = re.search(r"python -c \"(from importlib[^\"]*)\"", frozen)
    assert freeze is not None
    code = freeze[1].replace("torch", "pytest")
    done = run_with_python(f'python -c "{code}"', tmp_path)
    assert done.stdout.strip() == f"pytest=={pytest.__version__}"


@pytest.mark.parametrize("has_python", [True, False])
@pytest.mark.parametrize("has_venv", [True, False])
def test_missing_python_packages_are_installed(
    tmp_path: Path, has_python: bool, has_venv: bool
) -> None:
    bin_dir, lists = tmp_path / "bin", tmp_path / "lists"
    bin_dir.mkdir()
    lists.mkdir()
    (lists / "index").touch()
    interpreter = f"#!/bin/sh\nexit {0 if has_venv else 1}\n"
    tools = {
        "apt-get": f'#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >> "{tmp_path}/log"\n',
        "python3": interpreter,
    }
    for name, text in (tools | ({"python": interpreter} if has_python else {})).items():
        (bin_dir / name).write_text(text)
        (bin_dir / name).chmod(0o755)
    for name in ("rm", "ln"):
        (bin_dir / name).symlink_to(shutil.which(name) or name)
    system = runs(dockerfile(ImageSpec(family=Family.TENSORFLOW, apt=("ffmpeg",))))[0]
    command = system.replace("/usr/local/bin/python", str(bin_dir / "python")).replace(
        "/var/lib/apt/lists", str(lists)
    )
    assert command.count(str(tmp_path)) == 2
    subprocess.run(["/bin/sh", "-c", command], env={"PATH": str(bin_dir)}, check=True)
    asked = (tmp_path / "log").read_text().splitlines()
    assert asked[0] == "noninteractive update"
    assert asked[1].split()[-2:] == ["g++", "ffmpeg"]
    assert (len(asked) == 3 and asked[2].endswith("python3.11-dev python3.11-venv")) is not has_venv
    assert (bin_dir / "python").is_symlink() is not has_python
    assert not list(lists.iterdir())


# --- values stay values ---------------------------------------------------------------------------

SAFE_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r")
VALUES = st.text(SAFE_CHARACTERS) | st.sampled_from(
    ['"', "\\", "$PATH", "${X:+y}", "' \" '", 'a" B="c', "x \\", "# no", "\\\\", "é 😀"]
)


def without_environment(text: str) -> list[Instruction]:
    return [instruction for instruction in instructions(text) if instruction.word != "ENV"]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    value=VALUES,
    name=st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True).filter(
        lambda name: name not in {"PATH", "LD_LIBRARY_PATH"}
    ),
)
def test_environment_value_is_kept(value: str, name: str) -> None:
    text = dockerfile(ImageSpec(env={name: value}))
    assert environment(text, {"PATH": "/bin", "X": "set"})[name] == value
    assert without_environment(text) == without_environment(dockerfile(ImageSpec()))


LISTS: Mapping[str, Callable[[str], ImageSpec]] = {
    "apt": lambda value: ImageSpec(apt=(value,)),
    "imports": lambda value: ImageSpec(imports=(value,)),
    "copies": lambda value: ImageSpec(copies=(Copy(value, "/x"),)),
}


@pytest.mark.parametrize("place", LISTS)
@settings(max_examples=25)
@given(value=st.text(max_size=30) | st.from_regex(r"[a-z][a-z0-9.]{0,9}[a-z0-9]", fullmatch=True))
def test_list_entry_changes_one_instruction_or_is_refused(place: str, value: str) -> None:
    try:
        text = dockerfile(LISTS[place](value))
    except TemplateError:
        return
    plain = dockerfile(LISTS[place]("harmless"))
    assert [item.word for item in instructions(text)] == [item.word for item in instructions(plain)]
    assert text == plain.replace("harmless", json.dumps(value, ensure_ascii=False)[1:-1])


@pytest.mark.parametrize("value", ["two\nlines", "a\rb", "nul\0"])
def test_multiline_environment_value_is_refused(value: str) -> None:
    with pytest.raises(TemplateError, match=r"ENV|NUL"):
        dockerfile(ImageSpec(env={"X": value}))


def test_copy_path_keeps_blanks_and_refuses_wildcards() -> None:
    text = dockerfile(ImageSpec(copies=(Copy("my code", "app/é"),)))
    assert json.loads(last(text, "COPY")) == ["my code", "app/é"]
    for source in ("$HOME", "*.py", 'a"b', "a\nRUN id"):
        with pytest.raises(TemplateError):
            dockerfile(ImageSpec(copies=(Copy(source, "app"),)))
