"""A mock host cannot harm the machine, and leaves nothing on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from provision.testing import MockHost, MockHostError
from provision.testing.host.location import choose_folder, find_python
from provision.testing.host.processes import NOBODY, Processes
from tests.mock.plain_client import ask, connect, eventually

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only a server started as root drops its privileges"
)


def real_ids(host: MockHost) -> set[str]:
    """The real, effective, saved and file system user ids of the process."""
    line = host.run("grep ^Uid: /proc/self/status").output
    return set(line.split()[1:])


def test_shells_never_run_as_root(cos: MockHost) -> None:
    expected = str(NOBODY if os.geteuid() == 0 else os.geteuid())
    assert real_ids(cos) == {expected}
    assert "0" not in real_ids(cos)


def test_sudo_gives_no_privilege_on_machine(cos: MockHost) -> None:
    assert cos.run("sudo id -u").output == "0\n"
    assert set(cos.run("sudo grep ^Uid: /proc/self/status").output.split()[1:]) == real_ids(cos)
    assert cos.run("sudo grep ^NoNewPrivs /proc/self/status").output.split() == ["NoNewPrivs:", "1"]


@as_root
def test_absolute_path_in_script_writes_nothing_outside_host(cos: MockHost, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for command in (
        f"echo gone >{victim}",
        f"rm -f {victim}",
        f"sudo mv {victim} {victim}.old",
        f"chmod 777 {victim}",
        f"touch {tmp_path}/new",
    ):
        assert cos.run(command).status != 0, command
    assert victim.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]


@as_root
def test_only_read_capability_is_kept(cos: MockHost) -> None:
    effective = int(cos.run("grep ^CapEff /proc/self/status").output.split()[1], 16)
    assert effective in (0, 1 << 2)


@pytest.mark.slow
def test_host_sees_only_its_own_processes(cos: MockHost) -> None:
    with MockHost(name="other") as other:
        cos.run("sleep 1003 >/dev/null 2>&1 &")
        assert cos.run("pgrep -f 'sleep 100[3]'").status == 0
        assert other.run("pgrep -f 'sleep 100[3]'").status == 1
        assert "sleep 1003" not in other.run("ps -e -o args").output
        assert other.run("pkill -f 'sleep 100[3]'").status == 1
        assert cos.run("pkill -f 'sleep 100[3]'").status == 0
        assert eventually(lambda: cos.run("pgrep -f 'sleep 100[3]'").status == 1)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    "how",
    [
        "sleep 1004 & echo $!",
        "setsid sleep 1004 >/dev/null 2>&1 & echo $!",
        "(trap '' TERM HUP; sleep 1004) & echo $!",
    ],
)
def test_stop_ends_all_processes(how: str) -> None:
    with MockHost() as host:
        with connect(host) as client:
            pid = int(client.exec_command(how)[1].readline())
        spawner = host.processes.spawner_pid
        folder, identity = host.folder, Path(str(host.host.identity))
        assert alive(pid)
    assert not alive(pid)
    assert not alive(spawner)
    assert not folder.exists()
    assert not identity.parent.exists()


@pytest.mark.slow
def test_fork_bomb_is_ended() -> None:
    with MockHost() as host:
        host.put("/tmp/grow.sh", 'test "$1" -gt 200 || sh "$0" $(($1 + 1)) &\nsleep 1005\n')
        with connect(host) as client:
            client.exec_command('sh "$PROVISION_MOCK_ROOT/tmp/grow.sh" 0')
            assert eventually(lambda: int(host.run("pgrep -f 'sleep 100[5]' | wc -l").output) > 20)
            spawner = host.processes.spawner_pid
    assert not alive(spawner)
    found = subprocess.run(
        ["ps", "-e", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert "sleep 1005" not in found


def test_path_has_only_commands_of_cos(cos: MockHost) -> None:
    for name in ("python3", "python", "apt-get", "gcc", "pip", "wget"):
        assert cos.run(f"command -v {name}").status != 0, name
    for name in (
        "sh",
        "awk",
        "sed",
        "base64",
        "timeout",
        "setsid",
        "sha256sum",
        "findmnt",
        "sudo",
        "docker",
        "cos-extensions",
        "curl",
    ):
        assert cos.run(f"command -v {name}").status == 0, name


def test_removed_command_is_missing_until_restored(cos: MockHost) -> None:
    cos.remove_command("docker")
    assert cos.run("docker ps").status == 127
    assert "docker: command not found" in cos.run("sudo docker ps").output
    cos.restore_commands()
    assert cos.run("docker ps").status == 0
    with pytest.raises(ValueError, match="no command 'nonsense'"):
        cos.remove_command("nonsense")


def test_standins_run_without_file_modes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from provision.testing.host import filesystem

    bare = tmp_path / "standins"
    shutil.copytree(filesystem.STANDINS, bare)
    for path in bare.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    for name in ("docker", "mps"):
        (tmp_path / name).symlink_to(filesystem.STANDINS.with_name(name))
    monkeypatch.setattr(filesystem, "STANDINS", bare)
    with MockHost(
        folder=tmp_path
        / "a place with blanks, too long for the first line of a script to name"
        / ("x" * 80)
    ) as host:
        assert host.run("sudo cos-extensions list >/dev/null && docker ps -q").status == 0


# --- a home that is closed to the user of the shells ----------------------------------------------


@pytest.mark.slow
@as_root
def test_state_folder_below_closed_home_works(tmp_path: Path) -> None:
    closed = tmp_path / "home of root"
    closed.mkdir(mode=0o700)
    with MockHost(folder=closed / "a 'folder'") as host, connect(host) as client:
        assert (
            ask(
                client,
                "echo kept >x && sudo cos-extensions list >/dev/null && docker ps -q && cat x",
            ).out
            == "kept\n"
        )
    with MockHost(folder=closed / "a 'folder'") as host:
        assert host.run("cat x").output == "kept\n"


@as_root
def test_host_folder_moves_to_tmp_without_read_capability(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    processes = Processes(keep_reading=False)
    try:
        wanted = closed / "host"
        found = choose_folder(wanted, processes)
        assert found != wanted
        assert (wanted / "placed-at").read_text() == str(found)
        assert choose_folder(wanted, processes) == found
        status, _ = processes.run(
            ["/bin/sh", "-c", 'cd "$1"', "sh", str(found)], env={"PATH": "/bin"}, cwd="/"
        )
        assert status == 0
    finally:
        processes.close()
    MockHost(folder=wanted).destroy()
    assert not found.exists()
    assert not wanted.exists()


@as_root
def test_inaccessible_interpreter_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to("/bin/sh")
    processes = Processes(keep_reading=False)
    try:
        monkeypatch.setattr(sys, "executable", str(closed / "python"))
        monkeypatch.setattr(sys, "_base_executable", str(closed / "python"))
        monkeypatch.setattr("shutil.which", lambda *_args, **_words: None)
        with pytest.raises(MockHostError, match="cannot start any of"):
            find_python(processes)
    finally:
        processes.close()


@pytest.mark.slow
@as_root
def test_mock_host_runs_as_ordinary_user(cos: MockHost) -> None:
    """A mock host that is started by an unprivileged user, here from inside a mock host."""
    program = (
        "from provision.testing import MockHost\n"
        "with MockHost() as host:\n"
        "    print(host.processes.as_root, host.run('sudo cos-extensions install "
        "gpu').status, host.run('id -un').output)"
    )
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HOME": cos.root_path,
        "TMPDIR": f"{cos.root_path}/tmp",
    }
    status, output = cos.processes.run([sys.executable, "-c", program], env=environment, cwd="/")
    assert status == 0, output
    assert output.split() == ["False", "0", "user"]


def test_standalone_busybox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from provision.testing.host import utilities

    monkeypatch.setattr(utilities, "_is_standalone", lambda _path: True)
    monkeypatch.setattr(utilities, "_which", lambda name: f"/bin/{name}")
    with pytest.raises(MockHostError, match="before it looks at PATH"):
        MockHost(shell="busybox").start()
