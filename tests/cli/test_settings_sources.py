"""Sources of settings: Invoke's files, variables and flags, their order, and their errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

PROGRAMS = ("invoke", "provision")


def settings(cli: Cli, *words: str, **kwargs: Any) -> dict[str, Any]:
    ended = cli("vm.create", "--json", *words, **kwargs)
    assert "settings" in ended.document, ended.err
    return dict(ended.document["settings"])


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_level_overrides_the_previous(
    cli: Cli, project: Path, clean_environment: Path, program: str
) -> None:
    (clean_environment / ".invoke.yaml").write_text(
        "provision: {name: home, disk_gb: 100, worker: {python: '3.12', beam: 2.60.0}}\n"
    )
    assert settings(cli, program=program)["name"] == "home"
    (project / "invoke.yaml").write_text("provision: {name: project, worker: {python: '3.10'}}\n")
    merged = settings(cli, program=program)
    assert (merged["name"], merged["disk_gb"]) == ("project", 100)
    assert (merged["worker"]["python"], merged["worker"]["beam"]) == ("3.10", "2.60.0")
    env = {"INVOKE_PROVISION_NAME": "variable"}
    assert settings(cli, program=program, env=env)["name"] == "variable"
    (project / "other.yml").write_text("provision: {name: runtime}\n")
    assert (
        cli("-f", "other.yml", "vm.create", "--json", program=program, env=env).document["name"]
        == "runtime"
    )
    assert (
        cli(
            "-f", "other.yml", "vm.create", "--name", "flag", "--json", program=program, env=env
        ).document["name"]
        == "flag"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("invoke.yml", "provision: {name: found}"),
        ("invoke.json", '{"provision": {"name": "found"}}'),
        ("invoke.py", "import os\nprovision = {'name': os.sep.join(['found'])}\ndel os\n"),
    ],
)
def test_every_file_type_of_invoke_is_read(cli: Cli, project: Path, name: str, text: str) -> None:
    (project / name).write_text(text)
    assert settings(cli)["name"] == "found"


def test_yaml_file_has_precedence_over_json(cli: Cli, project: Path) -> None:
    (project / "invoke.json").write_text('{"provision": {"name": "json"}}')
    (project / "invoke.yaml").write_text("provision: {name: yaml}")
    assert settings(cli)["name"] == "yaml"


def test_runtime_file_from_environment_variable(cli: Cli, project: Path) -> None:
    (project / "ci.yaml").write_text("provision: {name: ci}")
    assert settings(cli, env={"INVOKE_RUNTIME_CONFIG": "ci.yaml"})["name"] == "ci"


@pytest.mark.parametrize("program", PROGRAMS)
def test_project_is_found_from_subfolder(cli: Cli, project: Path, program: str) -> None:
    (project / "invoke.yaml").write_text("provision: {name: above}")
    below = project / "src" / "deep"
    below.mkdir(parents=True)
    ended = cli("vm.create", "--json", program=program, cwd=below)
    assert (ended.document["name"], ended.document["project_dir"]) == ("above", str(project))


def test_provision_works_without_project(cli: Cli, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    ended = cli("vm.create", "--json", program="provision", cwd=bare)
    assert ended.document["settings"]["cloud"] == "mock"
    assert ended.document["project_dir"] == str(bare)


def test_unfit_dataflow_machine_type_error_shows_file_and_line(cli: Cli, project: Path) -> None:
    (project / "invoke.yaml").write_text(
        "provision:\n  gpu: nvidia-l4\n  dataflow:\n    machine_type: n1-standard-4\n"
    )
    ended = cli("vm.create")
    assert ended.code == 2
    assert (
        "invoke.yaml, line 4: provision.dataflow.machine_type is 'n1-standard-4': "
        "machine type n1-standard-4 does not fit" in ended.err
    )


def test_state_folder_follows_xdg(cli: Cli, clean_environment: Path) -> None:
    assert cli("vm.create", "--json").document["state_dir"] == str(
        clean_environment / ".local/state/provision"
    )
    assert (
        cli("vm.create", "--json", env={"XDG_STATE_HOME": "/x/y"}).document["state_dir"]
        == "/x/y/provision"
    )
    relative = cli("vm.create", "--json", env={"XDG_STATE_HOME": "y"}).document["state_dir"]
    assert relative == str(clean_environment / ".local/state/provision"), (
        "XDG: a relative path is ignored"
    )


# --- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_variable_overrides_list_of_file(cli: Cli, project: Path, program: str) -> None:
    """Invoke alone ends with a traceback: it cannot convert text to the type in the file."""
    (project / "invoke.yaml").write_text(
        "provision: {zones: [us-east1-b], gpu_count: 1, worker: {requirements: [a]}}"
    )
    env = {
        "INVOKE_PROVISION_ZONES": "us-central1-a, us-central1-b",
        "INVOKE_PROVISION_GPU_COUNT": "2",
        "INVOKE_PROVISION_WORKER_REQUIREMENTS": "torch==2.5.1,numpy",
        "INVOKE_PROVISION_WORKER_PRIVILEGED": "true",
    }
    found = settings(cli, program=program, env=env)
    assert found["zones"] == ["us-central1-a", "us-central1-b"]
    assert found["gpu_count"] == 2
    assert found["worker"]["requirements"] == ["torch==2.5.1", "numpy"]
    assert found["worker"]["privileged"] is True


def test_empty_variable_is_ignored(cli: Cli, project: Path) -> None:
    (project / "invoke.yaml").write_text("provision: {project: my-project-1}")
    assert settings(cli)["cloud"] == "gce"
    assert settings(cli, env={"INVOKE_PROVISION_PROJECT": ""})["cloud"] == "mock"


def test_empty_flag_is_refused(cli: Cli, project: Path) -> None:
    """`--name "$VM"` with VM unset must not act on the VM of the settings."""
    (project / "invoke.yaml").write_text("provision: {name: precious}")
    for task, flag in (
        ("vm.create", "--name"),
        ("vm.show", "--name"),
        ("vm.create", "--machine-type"),
    ):
        ended = cli(task, f"{flag}=", "--json")
        assert ended.code == 2
        assert ended.document["error"] == {
            **ended.document["error"],
            "what": "the flag has no value",
            "where": flag,
            "why": "it is empty",
            "fix": f"{flag} VALUE, or leave it out to use the settings",
        }


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("INVOKE_PROVISION_ZONE", "x", "did you mean INVOKE_PROVISION_ZONES?"),
        ("INVOKE_PROVISION_WORKER_ENV", "A=b", "write provision.worker.env into invoke.yaml"),
        ("INVOKE_PROVISION_HOSTS_WS_ADDRESS", "x", "write provision.hosts into invoke.yaml"),
        ("INVOKE_PROVISION", "x", "write provision into invoke.yaml"),
        ("INVOKE_PROVISION_DISK_GB", "much", "write digits alone"),
        ("INVOKE_PROVISION_WORKER_PRIVILEGED", "maybe", "write true or false"),
    ],
)
def test_unknown_settings_variable_is_refused(
    cli: Cli, variable: str, text: str, expected: str
) -> None:
    ended = cli("vm.create", env={variable: text})
    assert ended.three_lines[0].startswith(f"error: {variable}: ")
    assert expected in ended.three_lines[2]
    assert ended.code == 2


def test_child_processes_see_settings_variables(cli: Cli, project: Path) -> None:
    (project / "tasks.py").write_text(
        "import sys\nfrom invoke import task\nfrom provision.cli import namespace_for\n\n"
        "namespace = namespace_for(__file__)\n\n\n"
        "@task\ndef outer(context):\n"
        "    context.run('%s -m invoke vm.list --json' % sys.executable)\n\n\n"
        "namespace.add_task(outer)\n"
    )
    ended = cli("outer", program="invoke", env={"INVOKE_PROVISION_ZONES": "nowhere"})
    assert "INVOKE_PROVISION_ZONES" in ended.out


# --- files that are wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "words"),
    [("invoke", ("--list",)), ("invoke", ("vm.list",)), ("provision", ("vm.list",))],
)
def test_yaml_error_shows_line_and_column(
    cli: Cli, project: Path, program: str, words: tuple[str, ...]
) -> None:
    (project / "invoke.yaml").write_text("provision:\n  name: dev\n   zones: [a]\n")
    ended = cli(*words, program=program)
    assert ended.three_lines[0] == "error: invoke.yaml, line 3, column 9: is not YAML"
    assert ended.code == 2


def test_yaml_error_as_json_document(cli: Cli, project: Path) -> None:
    (project / "invoke.yaml").write_text("a: [")
    ended = cli("vm.list", "--json")
    assert ended.document["error"]["what"] == "is not YAML"
    assert ended.document["exit"] == ended.code == 2


FILES = [
    (
        "invoke.yaml",
        b"provision:\n\tname: x\n",
        "error: invoke.yaml, line 2, column 1: is not YAML",
    ),
    ("invoke.yaml", b"provision: {name: \xff}\n", "error: invoke.yaml: is not text"),
    ("invoke.yaml", b"provision: {name: a\x00b}\n", "error: invoke.yaml: is not YAML"),
    ("invoke.yaml", b"- provision\n", "error: invoke.yaml: holds no settings"),
    ("invoke.yaml", b"provision: 5\n", "error: invoke.yaml: provision is 5"),
    (
        "invoke.yaml",
        b"provision:\n  gpu: nvidia-l4\n\n  gpu: nvidia-t4\n",
        "error: invoke.yaml, line 4: provision.gpu is set twice",
    ),
    (
        "invoke.yaml",
        b"provision:\n  name: dev\n  zone: x\n",
        "error: invoke.yaml, line 3: unknown key provision.zone",
    ),
    (
        "invoke.yaml",
        b"provision:\n  hosts:\n    7: {address: x}\n",
        "error: invoke.yaml, line 3: '7' is not a valid key of provision.hosts",
    ),
    (
        "invoke.yaml",
        b"provision:\n  worker:\n    python: 3.10\n",
        "error: invoke.yaml, line 3: provision.worker.python is 3.1",
    ),
    (
        "invoke.yaml",
        b"provision:\n  disk_gb: 20\n",
        "error: invoke.yaml, line 2: provision.disk_gb is 20",
    ),
    (
        "invoke.yaml",
        b"provision:\n  provisioning: spot\n  reservation: r\n",
        "error: invoke.yaml, line 3: provision.reservation is 'r': it cannot be used",
    ),
    (
        "invoke.yaml",
        b"provision:\n  provisioning: flex-start\n  ttl: none\n",
        "error: invoke.yaml, line 3: provision.ttl is 'none': a flex-start VM needs a time to live",
    ),
    (
        "invoke.json",
        b'{"provision":\n  {"name": }}',
        "error: invoke.json, line 2, column 12: is not JSON",
    ),
    (
        "invoke.py",
        b"x = 1\nprovision = nothing\n",
        "error: invoke.py, line 2: fails when it is run",
    ),
    ("invoke.py", b"import os\nprovision = {}\n", "error: invoke.py: is refused by Invoke"),
    ("invoke.py", b"provision = {\n", "error: invoke.py, line 1: fails when it is run"),
]
BREAK_INVOKE_TOO = [
    row
    for row in FILES
    if any(word in row[2] for word in ("is not", "holds no", "no name", "fails", "refused"))
]


@pytest.mark.parametrize(("name", "content", "first"), FILES)
def test_unusable_settings_file_is_explained(
    cli: Cli, project: Path, name: str, content: bytes, first: str
) -> None:
    (project / name).write_bytes(content)
    ended = cli("vm.create")
    assert ended.three_lines[0] == first
    assert ended.code == 2


@pytest.mark.parametrize(("name", "content", "first"), BREAK_INVOKE_TOO)
def test_settings_file_that_breaks_invoke_is_explained(
    cli: Cli, project: Path, name: str, content: bytes, first: str
) -> None:
    (project / name).write_bytes(content)
    ended = cli("vm.create", program="invoke")
    assert ended.three_lines[0] == first
    assert ended.code == 2


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("absent.yaml", "No such file or directory"),
        ("settings.toml", "it ends with none of yaml, yml, json, py"),
    ],
)
def test_unreadable_runtime_file_is_explained(
    cli: Cli, project: Path, program: str, name: str, expected: str
) -> None:
    (project / "settings.toml").write_text("")
    ended = cli("-f", name, "vm.create", program=program)
    assert expected in ended.err
    assert "Traceback" not in ended.err
    assert ended.code == 2


def test_invalid_file_in_home_folder_is_explained(cli: Cli, clean_environment: Path) -> None:
    """Invoke reads it before our tasks: only `provision` can print more than a traceback."""
    (clean_environment / ".invoke.yaml").write_text("a: [\n")
    ended = cli("vm.list", program="provision")
    assert "line 2, column 1: is not YAML" in ended.three_lines[0]
    assert ended.code == 2


def test_gpu_and_machine_type_mismatch_is_refused(cli: Cli, project: Path) -> None:
    (project / "invoke.yaml").write_text(
        "provision:\n  gpu: nvidia-l4\n  machine_type: n1-standard-8\n"
    )
    ended = cli("vm.create")
    assert ended.three_lines[0].startswith(
        "error: invoke.yaml, line 3: provision.machine_type is 'n1-standard-8'"
    )
    assert "g2-standard-8" in ended.three_lines[1]
    assert ended.code == 2


def test_mismatch_of_derived_machine_type_names_the_gpu(cli: Cli) -> None:
    ended = cli("vm.create", "--gpu", "h100")
    problem = "machine type a3-highgpu-1g cannot be had as STANDARD"
    assert ended.three_lines[0] == f"error: --gpu: provision.gpu is 'h100': {problem}"
    assert (
        cli("vm.create", "--gpu", "gb300").three_lines[0]
        == "error: --gpu: provision.gpu is 'gb300': nvidia-gb300 cannot be used here"
    )


def test_error_names_flag_as_source(cli: Cli) -> None:
    ended = cli("vm.create", "--name", "a;b")
    assert ended.three_lines[0] == "error: --name: provision.name is 'a;b'"
    assert settings(cli, "--zones", "us-east1-b,us-east1-c", "--gpu", "none")["zones"] == [
        "us-east1-b",
        "us-east1-c",
    ]


def test_error_in_users_task_keeps_traceback(cli: Cli, project: Path) -> None:
    (project / "tasks.py").write_text(
        "from invoke import task\nfrom provision.cli import namespace_for\n\n"
        "namespace = namespace_for(__file__)\n\n\n"
        "@task\ndef mine(context):\n    raise LookupError('my own')\n\n\nnamespace.add_task(mine)\n"
    )
    (project / "invoke.yaml").write_text("provision: {zone: x}")
    ended = cli("mine", program="invoke")
    assert ended.err.rstrip().endswith("LookupError: my own")
    assert ended.code == 1


# --- the example of all settings ------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_example_settings_work_unedited(cli: Cli, project: Path) -> None:
    plain = settings(cli)
    (project / "invoke.yaml").write_text((ROOT / "invoke.yaml").read_text())
    assert settings(cli) == plain


def test_example_settings_are_complete_and_valid(cli: Cli, project: Path) -> None:
    """Uncomment every line: each must be valid, and no setting may be missing."""
    lines = (ROOT / "invoke.yaml").read_text().splitlines()
    body = lines[lines.index("provision:") :]
    text = "\n".join(re.sub(r"^( *)# ( *\w+:( |$))", r"\1\2", line) for line in body).replace(
        "AAAA...", "AAAAC3NzaC1lZDI1NTE5AAAAIJ3kqUOLiRGIH9g3OUN0TJqEoqZF8Ykm0JGbqZm3mTkD"
    )
    (project / "invoke.yaml").write_text(text)
    ended = cli("vm.create", "--json")
    from provision.settings import HostSettings, Settings, leaves

    assert "settings" in ended.document, ended.err
    named = {word.split(":")[0] for word in text.split() if word.endswith(":")}
    wanted = {leaf.path[-1] for leaf in leaves(Settings)} | set(HostSettings.model_fields)
    assert wanted <= named


def test_list_imports_no_heavy_library(project: Path) -> None:
    """`invoke --list` imports Invoke itself and a few small modules."""
    script = (
        "import sys, atexit\nsys.argv = ['invoke', '--list']\nfrom invoke.main import program\n"
        "try:\n    program.run()\nexcept SystemExit:\n    pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    modules = set(done.stderr.split())
    heavy = {
        "google",
        "grpc",
        "fabric",
        "paramiko",
        "pydantic",
        "pydantic_core",
        "rich",
        "jinja2",
        "werkzeug",
        "tenacity",
        "cryptography",
    }
    assert modules & heavy == set()
    ours = {
        name
        for name in modules
        if name.startswith("provision.") and not name.startswith("provision.cli")
    }
    assert ours == set()
    assert "vm.create" in done.stdout
    assert "image.render" in done.stdout


def test_both_programs_list_the_same_tasks(cli: Cli) -> None:
    listed = [
        {
            line.split()[0]
            for line in cli("--list", program=program).out.splitlines()
            if line.startswith("  ")
        }
        for program in PROGRAMS
    ]
    assert listed[0] == listed[1]
    assert {"vm.create", "vm.ssh-config", "dev.exec", "mock.up", "demo"} <= listed[0]


def test_every_task_and_flag_has_help(cli: Cli) -> None:
    tasks = [
        line.split()
        for line in cli("--list").out.splitlines()
        if line.startswith("  ") and "." in line.split()[0]
    ]
    for name in ("vm.create", "vm.delete", "vm.copy", "image.render", "dev.run"):
        assert any(words[0] == name for words in tasks)
        options = cli("--help", name).out.split("Options:")[1].strip("\n").splitlines()
        flags = [line for line in options if line.startswith("  -")]
        assert flags
        assert all(len(line.split(maxsplit=1)) == 2 for line in flags), options
