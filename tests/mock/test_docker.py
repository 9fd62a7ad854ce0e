"""The docker stand-in: real processes in containers, real files in images, Docker's messages."""

from __future__ import annotations

import base64
import io
import json
import tarfile

import pytest

from provision.testing import MockHost
from tests.mock.plain_client import connect, eventually

pytestmark = pytest.mark.busybox

R = "$PROVISION_MOCK_ROOT"
GPU = (
    f'--device "{R}/dev/nvidia0:/dev/nvidia0" --device /dev/nvidiactl --volume '
    f'"{R}"/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro '
    f'--volume "{R}"/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro --env '
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib64 "
    "--env PATH=/usr/local/nvidia/bin:/usr/local/bin:/usr/bin:/bin"
)


def start(host: MockHost, options: str = "", name: str = "dev", image: str = "python:3.11") -> None:
    done = host.run(
        f"docker run --detach --init --name {name} --entrypoint sleep {options} {image} infinity"
    )
    assert done.status == 0, done.output


def build(
    host: MockHost, dockerfile: str, options: str = "--tag w:1", **files: str
) -> tuple[int, str]:
    """Build from a tar on standard input."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in {"Dockerfile": dockerfile, **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return host.run(f"docker build {options} -", stdin=packed.getvalue())


# --- the client -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        ("docker frobnicate", 1, "'frobnicate' is not a docker command"),
        ("docker swarm init", 125, "does not simulate `docker swarm`"),
        ("docker buildx build .", 1, "'buildx build' is not a docker command"),
        ("docker run --frobnicate x", 125, "unknown flag: --frobnicate"),
        ("docker run -Z x", 125, "unknown shorthand flag: 'Z' in -Z"),
        ("docker run --name", 125, "flag needs an argument: --name"),
        ("docker run --init=maybe x", 125, "strconv.ParseBool"),
        ("docker exec dev", 1, "requires at least 2 arguments"),
        ("docker exec nope true", 1, "No such container: nope"),
        ("docker --frobnicate ps", 125, "unknown flag: --frobnicate"),
        ("docker start nope", 1, "failed to start containers: nope"),
        ("docker rm nope", 1, "No such container: nope"),
        ("docker volume inspect nope", 1, "no such volume"),
        ("docker image inspect nope", 1, "No such image: nope"),
        ("docker container inspect nope", 1, "No such container: nope"),
    ],
)
def test_invalid_docker_command_is_refused(
    shared: MockHost, command: str, status: int, text: str
) -> None:
    done = shared.run(command)
    assert done.status == status
    assert text in done.output


def test_version_and_info_formats(shared: MockHost) -> None:
    assert shared.run("docker version --format '{{.Server.Version}}'").output == "27.5.1\n"
    assert (
        shared.run("docker info --format '{{.ServerVersion}} {{len .Runtimes}}'").output
        == "27.5.1 2\n"
    )
    bad = shared.run("docker version --format '{{.Nope}}'")
    assert bad.status == 1
    assert 'no entry for key "Nope"' in bad.output


def test_commands_fail_when_daemon_is_down(cos: MockHost) -> None:
    cos.faults.set("docker_down")
    done = cos.run("docker ps")
    assert done.status == 1
    assert "Cannot connect to the Docker daemon" in done.output


# --- images ---------------------------------------------------------------------------------------


def test_private_registry_needs_credential_helper(cos: MockHost) -> None:
    ref = "us-docker.pkg.dev/p/r/image:1"
    refused = cos.run(f"docker pull {ref}")
    assert refused.status == 1
    assert "artifactregistry.repositories.downloadArtifacts" in refused.output
    configure = (
        f'DOCKER_CONFIG="{R}/var/lib/x" docker-credential-gcr configure-docker '
        "--registries=us-docker.pkg.dev"
    )
    assert cos.run(configure).status == 0
    assert cos.run(f"docker pull {ref}").status == 1, (
        "docker reads another configuration than the written one"
    )
    assert cos.run(f'DOCKER_CONFIG="{R}/var/lib/x" docker pull {ref}').status == 0
    cos.remove_command("docker-credential-gcr")
    missing = cos.run(f'DOCKER_CONFIG="{R}/var/lib/x" docker pull {ref}2')
    assert missing.status == 1
    assert '"docker-credential-gcr": executable file not found in $PATH' in missing.output


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("pull_not_found", "manifest unknown"),
        ("pull_no_egress", "Client.Timeout exceeded"),
        ("pull_denied", "denied: Unauthenticated request"),
    ],
)
def test_failing_pull_prints_registry_error(cos: MockHost, fault: str, text: str) -> None:
    cos.faults.set(fault)
    done = cos.run("docker pull python:3.11")
    assert done.status == 1
    assert text in done.output
    assert cos.run("docker images -q").output == ""


def test_docker_login_with_password(cos: MockHost) -> None:
    assert (
        cos.run(
            "docker login -u oauth2accesstoken --password-stdin https://eu.gcr.io", stdin=b"token"
        ).status
        == 0
    )
    assert cos.run("docker pull eu.gcr.io/p/image").status == 0
    assert (
        cos.run("sudo docker login -u x --password-stdin eu.gcr.io", stdin=b"token").status == 1
    ), "/root is read-only"


def test_build_keeps_labels_environment_and_files(cos: MockHost) -> None:
    dockerfile = (
        "ARG BASE=apache/beam_python3.11_sdk:2.60.0\nFROM ${BASE}\n# a comment\nLABEL "
        'a=1 \\\n  b="two words"\n'
        'ENV PATH="/usr/local/nvidia/bin:${PATH}" \\\n    LIBS="/x${LIBS:+:$LIBS}" '
        'QUOTED="say \\"hi\\""\n'
        "WORKDIR /workspace\nCOPY main.py requirements.txt ./\nRUN pip install "
        'nothing\nENTRYPOINT ["/opt/apache/beam/boot"]\n'
    )
    status, output = build(
        cos,
        dockerfile,
        "--tag w:1 --label provision.context=abc",
        **{"main.py": "print(1)", "requirements.txt": ""},
    )
    assert status == 0, output
    assert "Step 1/8 : ARG BASE" in output
    assert "Successfully tagged w:1" in output
    shown = cos.run(
        "docker image inspect -f '{{index .Config.Labels "
        '"provision.context"}}|{{.Config.Labels.b}}|{{json .Config.Entrypoint}}\' w:1'
    )
    assert shown.output == 'abc|two words|["/opt/apache/beam/boot"]\n'
    environment = cos.run(
        "docker image inspect -f '{{range .Config.Env}}{{println .}}{{end}}' w:1"
    ).output.splitlines()
    assert "LIBS=/x" in environment
    assert 'QUOTED=say "hi"' in environment
    assert environment[0].startswith("PATH=/usr/local/nvidia/bin:/usr/local/sbin")
    start(cos, image="w:1")
    assert cos.run("docker exec dev python /workspace/main.py").output == "1\n"


def test_build_id_depends_on_files(cos: MockHost) -> None:
    def built(text: str) -> str:
        assert build(cos, "FROM python:3.11\nCOPY x /x\n", x=text)[0] == 0
        return cos.run("docker image inspect -f '{{.Id}}' w:1").output

    first = built("1")
    assert built("1") == first
    assert built("2") != first


@pytest.mark.parametrize(
    ("dockerfile", "text"),
    [
        ("FROM x\nRUN --mount=type=cache,target=/x true\n", "the --mount option requires BuildKit"),
        ("FROM x\nCOPY --chmod=755 Dockerfile /x\n", "the --chmod option requires BuildKit"),
        ("FROM x\nCOPY --link Dockerfile /x\n", "the --link option requires BuildKit"),
        ("FROM x\nRUN <<EOF\necho\nEOF\n", "heredoc"),
        ("FROM x\nFROBNICATE\n", "unknown instruction: FROBNICATE"),
        ("FROM x\nCOPY nope /x\n", "file not found in build context"),
        ("FROM x\nCOPY ../../etc/passwd /x\n", "file not found in build context"),
        ("RUN true\n", "no build stage in current context"),
        ("FROM x\nENV A=1 B\n", "Must be of the form: name=value"),
    ],
)
def test_legacy_builder_refuses_buildkit_features(
    shared: MockHost, dockerfile: str, text: str
) -> None:
    status, output = build(shared, dockerfile)
    assert status == 1
    assert text in output
    assert shared.run("docker images -q w").output == ""


def test_build_reads_dockerfile_from_stdin(cos: MockHost) -> None:
    assert (
        cos.run("docker build --quiet --tag y -", stdin=b"FROM scratch\nLABEL x=1\n")
        .output.splitlines()[-1]
        .startswith("sha256:")
    )
    assert cos.run("docker build -", stdin=b"").status == 1
    assert (
        "buildx component is missing"
        in cos.run("DOCKER_BUILDKIT=1 docker build -", stdin=b"FROM x\n").output
    )


def test_failing_run_instruction_fails_build(cos: MockHost) -> None:
    cos.faults.set("build_fails")
    status, output = build(cos, "FROM x\nRUN make it\n")
    assert status == 1
    assert "The command '/bin/sh -c make it' returned a non-zero code: 1" in output


# --- containers -----------------------------------------------------------------------------------


def test_exec_uses_container_environment_folder_and_status(
    cos: MockHost,
) -> None:
    start(cos, "--env 'A=x y' --workdir /work --volume data:/work")
    assert cos.run('docker exec dev sh -c \'echo "$A"; id -u; basename "$(pwd -P)"; exit 5\'') == (
        5,
        "x y\n0\n_data\n",
    )
    assert cos.run("docker exec -i dev cat", stdin=b"through").output == "through"
    assert cos.run("docker exec dev cat", stdin=b"through").output == "", (
        "without -i the program has no input"
    )
    assert (
        cos.run("B=c docker exec -e A -e B dev sh -c 'echo ${A-none} $B'").output == "none c\n"
    ), "removed, or set from the client's environment"
    assert (
        cos.run("docker exec -e A=z -w /tmp -u 1000 dev sh -c 'echo $A; id -u'").output
        == "z\n1000\n"
    )
    assert cos.run("docker exec dev sh -c 'command -v sudo docker cos-extensions'").output == "", (
        "the container has no programs of the host"
    )
    assert cos.run("docker exec dev sh -c 'kill -9 $$'").status == 137


def test_exec_of_bad_program_fails_with_126_or_127(cos: MockHost) -> None:
    start(cos)
    missing = cos.run("docker exec dev no-such")
    assert missing.status == 127
    assert 'exec: "no-such": executable file not found in $PATH' in missing.output
    cos.run("docker exec dev sh -c ': >\"$PROVISION_MOCK_ROOT/tmp/x\"'")
    denied = cos.run("docker exec dev /tmp/x")
    assert denied.status == 126
    assert "permission denied" in denied.output
    assert cos.run("docker exec -t dev true").output == "the input device is not a TTY\n"


def test_container_python_finds_container_files(cos: MockHost) -> None:
    start(cos, "--volume code:/workspace")
    program = base64.b64encode(b"import sys; print(sys.argv[1:], 6 * 7)").decode()
    cos.run(
        f"docker exec dev sh -c 'echo {program} | base64 -d "
        '>"$PROVISION_MOCK_ROOT/workspace/x.py"\''
    )
    for command in (
        "docker exec dev python /workspace/x.py a 'b c'",
        "docker exec -w /workspace dev sh -c \"python3 x.py a 'b c'\"",
    ):
        assert cos.run(command).output == "['a', 'b c'] 42\n", command


def test_volumes_outlive_containers(cos: MockHost) -> None:
    start(cos, f'--volume data:/data --volume "{R}/home/user":/home/user')
    cos.run("echo from-host >~/x")
    assert (
        cos.run(
            'docker exec dev sh -c \'cat "$PROVISION_MOCK_ROOT/home/user/x"; echo kept '
            '>"$PROVISION_MOCK_ROOT/data/y"\''
        ).output
        == "from-host\n"
    )
    cos.run("docker rm --force dev")
    start(cos, "--volume data:/data")
    assert cos.run("docker exec dev cat /data/y").output == "kept\n"
    in_use = cos.run("docker volume rm data")
    assert in_use.status == 1
    assert "volume is in use" in in_use.output
    cos.run("docker rm -f dev")
    assert cos.run("docker volume rm data; docker volume ls -q").output == "data\n"


def test_container_name_is_unique_and_failed_start_keeps_container(cos: MockHost) -> None:
    failed = cos.run(
        "docker run -d --name dev --device /dev/nvidia0 --entrypoint sleep python:3.11 infinity"
    )
    assert failed.status == 127
    assert (
        'error gathering device information while adding custom device "/dev/nvidia0": '
        "no such file or directory" in failed.output
    )
    assert cos.run("docker inspect -f '{{.State.Status}}' dev").output == "created\n"
    again = cos.run("docker run -d --name dev python:3.11 sleep 1")
    assert again.status == 125
    assert 'The container name "/dev" is already in use' in again.output


def test_gpus_flag_fails_as_on_cos(cos: MockHost) -> None:
    done = cos.run("docker run -d --gpus all --entrypoint sleep python:3.11 infinity")
    assert done.status == 125
    assert "Using requested mode 'cdi'" in done.output
    assert (
        "unknown or invalid runtime name: nvidia"
        in cos.run("docker run -d --runtime=nvidia python:3.11 true").output
    )


def test_ps_filters_by_label_name_and_state(cos: MockHost) -> None:
    start(cos, "--label team=a --label spec=1")
    start(cos, "--label team=b", name="other")
    cos.run("docker stop other")
    assert cos.run("docker ps --format '{{.Names}}'").output == "dev\n"
    assert (
        cos.run("docker ps -a --format '{{.Names}} {{.State}}'").output
        == "other exited\ndev running\n"
    )
    assert cos.run("docker ps -a --filter label=team=b --format '{{.Names}}'").output == "other\n"
    assert cos.run("docker inspect -f '{{.Id}}' dev").output.startswith(
        cos.run("docker ps -aq --filter name=^dev$").output.strip()
    )
    assert cos.run("docker ps --filter frobnicate=x").status == 1
    shown = cos.run(
        "docker container inspect -f '{{.State.Running}}|{{.Image}}|{{index "
        '.Config.Labels "spec"}}|{{index .Config.Labels "none"}}\' dev'
    )
    assert (
        shown.output
        == f"true|{cos.run('docker image inspect -f {{.Id}} python:3.11').output.strip()}|1|\n"
    )
    assert json.loads(cos.run("docker inspect dev").output)[0]["Name"] == "/dev"


@pytest.mark.slow
def test_docker_stop_ends_only_container_processes(cos: MockHost) -> None:
    start(cos)
    start(cos, name="other")
    cos.run("docker exec -d dev sleep 1010; docker exec -d other sleep 1011")
    assert eventually(lambda: cos.run("pgrep -f 'sleep 101[01]' | wc -l").output.strip() == "2")
    assert cos.run("docker stop --time 1 dev").status == 0
    assert cos.run("pgrep -f 'sleep 101[0]'").status == 1
    assert cos.run("pgrep -f 'sleep 101[1]'").status == 0
    assert (
        cos.run("docker inspect -f '{{.State.Running}} {{.State.ExitCode}}' dev").output
        == "false 143\n"
    )
    not_running = cos.run("docker exec dev true")
    assert not_running.status == 1
    assert "is not running" in not_running.output
    assert cos.run("docker restart dev && docker exec dev echo back").output == "dev\nback\n"
    assert cos.run("docker rm dev").status == 1
    assert cos.run("docker rm -f dev other && docker ps -aq").output == "dev\nother\n"


def test_ended_container_keeps_status_and_log(cos: MockHost) -> None:
    cos.run("docker run -d --name once python:3.11 sh -c 'echo one; echo two >&2; exit 4'")
    assert cos.run("docker wait once").output == "4\n"
    assert cos.run("docker logs once").output == "one\ntwo\n"
    assert cos.run("docker logs --tail 1 once").output == "two\n"
    assert cos.run("docker run --rm python:3.11 sh -c 'echo here; exit 6'") == (6, "here\n")
    assert cos.run("docker ps -aq | wc -l").output.strip() == "1"


def test_killed_docker_client_leaves_exec_running(cos: MockHost) -> None:
    start(cos)
    with connect(cos) as client:
        client.exec_command("docker exec dev sleep 1012 & sleep 0.5; kill $!; wait")[
            1
        ].channel.recv_exit_status()
    assert cos.run("pgrep -f 'sleep 101[2]'").status == 0


def test_docker_exec_tty_has_terminal(cos: MockHost) -> None:
    start(cos, "--workdir /work")
    with connect(cos) as client:
        transport = client.get_transport()
        assert transport is not None
        channel = transport.open_session()
        channel.get_pty("xterm", 100, 30)
        program = (
            'stty size; trap "echo caught; exit 9" INT; echo ready; while :; do sleep 0.1; done'
        )
        channel.exec_command(f"docker exec --interactive --tty dev sh -c '{program}'")
        text = b""
        while b"ready" not in text:
            text += channel.recv(1000)
        assert b"30 100" in text
        channel.sendall(b"\x03")
        assert b"caught" in channel.makefile().read()
        assert channel.recv_exit_status() == 9


def test_docker_cp_copies_in_both_directions(cos: MockHost) -> None:
    start(cos)
    assert (
        cos.run(
            "echo x >~/a && docker cp ~/a dev:/tmp/b && docker exec dev cat /tmp/b && "
            "docker cp dev:/tmp/b ~/c && cat ~/c"
        ).output
        == "x\nx\n"
    )
    assert cos.run("docker cp dev:/nope ~/d").status == 1
    assert cos.run("docker cp ~/nope dev:/tmp").status == 1
    assert (
        cos.run("tar -cf - -C ~ a | docker cp - dev:/tmp && docker exec dev cat /tmp/a").output
        == "x\n"
    )


# --- the driver in a container --------------------------------------------------------------------


def prepare(host: MockHost, *, executable: bool = True) -> None:
    host.run("sudo cos-extensions install gpu")
    if executable:
        host.run(
            "sudo mount --bind /var/lib/nvidia /var/lib/nvidia; sudo mount -o "
            "remount,exec /var/lib/nvidia"
        )


def test_nvidia_smi_runs_in_container_with_devices_and_volumes(cos: MockHost) -> None:
    prepare(cos)
    start(cos, GPU)
    assert cos.run("docker exec dev nvidia-smi --query-gpu=name --format=csv,noheader") == (
        0,
        "NVIDIA L4\n",
    )
    start(cos, GPU.replace("--device /dev/nvidiactl", ""), name="half")
    assert cos.run("docker exec half nvidia-smi").status == 9
    start(cos, GPU.partition("--volume")[0], name="bare")
    assert cos.run("docker exec bare nvidia-smi").status == 127
    no_library = GPU.replace("LD_LIBRARY_PATH", "ELSEWHERE")
    start(cos, no_library, name="lost")
    assert "couldn't find libnvidia-ml.so" in cos.run("docker exec lost nvidia-smi").output


def test_noexec_driver_folder_is_executable_in_container_only_if_read_only(
    cos: MockHost,
) -> None:
    prepare(cos, executable=False)
    start(cos, GPU)
    start(cos, GPU.replace(":ro", ""), name="rw")
    assert cos.run("docker exec dev nvidia-smi -L").status == 0
    assert cos.run("docker exec rw nvidia-smi -L").status == 126
    cos.run(
        "sudo mount --bind /var/lib/nvidia /var/lib/nvidia; sudo mount -o remount,exec "
        "/var/lib/nvidia"
    )
    assert cos.run("docker exec rw nvidia-smi -L").status == 126, (
        "a container keeps the mounts of its start"
    )
    cos.run("docker restart rw")
    assert cos.run("docker exec rw nvidia-smi -L").status == 0


def test_privileged_container_keeps_devices_of_its_start(cos: MockHost) -> None:
    start(cos, "--privileged")
    prepare(cos)
    assert cos.run("docker exec dev sh -c 'ls \"$PROVISION_MOCK_ROOT/dev\"'").output == "shm\n"
    cos.run("docker restart dev")
    assert "nvidiactl" in cos.run("docker exec dev sh -c 'ls \"$PROVISION_MOCK_ROOT/dev\"'").output
