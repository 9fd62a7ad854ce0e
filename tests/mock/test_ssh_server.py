"""The SSH server, driven by plain paramiko: what OpenSSH answers, this answers."""

from __future__ import annotations

import socket
import threading
import time

import paramiko
import pytest

from provision.testing import MockHost
from tests.mock.plain_client import ask, connect, eventually


@pytest.mark.busybox
def test_stdout_stderr_and_status_are_separate(client: paramiko.SSHClient) -> None:
    answer = ask(client, "cat; echo oops >&2; exit 3", b"in\x00put")
    assert (answer.status, answer.out, answer.err) == (3, "in\0put", "oops\n")


def test_megabyte_passes_in_both_directions(client: paramiko.SSHClient) -> None:
    answer = ask(client, "cat", b"0123456789abcdef" * 65536)
    assert len(answer.out) == 1 << 20


def test_long_argument_runs_and_too_long_argument_is_refused(
    client: paramiko.SSHClient,
) -> None:
    assert ask(client, f": {'x' * 100_000}; echo ok").out == "ok\n"
    refused = ask(client, f": {'x' * 140_000}; echo ok")
    assert refused.status == 1
    assert "Argument list too long" in refused.err


def test_signalled_command_reports_signal_name(client: paramiko.SSHClient, cos: MockHost) -> None:
    assert ask(client, "kill -9 $$").status == -1  # paramiko's word for "no exit-status was sent"


def test_env_requests_are_refused(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.set_environment_variable("PROVISION_LEAK", "1")
    channel.exec_command('printf %s "${PROVISION_LEAK-none}"')
    assert channel.makefile().read() == b"none"


def test_only_authorized_key_of_user_logs_in(cos: MockHost) -> None:
    with pytest.raises(paramiko.AuthenticationException):
        connect(cos, user="root")
    assert cos.stats.auth_failures > 0
    cos.faults.refuse_auth = True
    with pytest.raises(paramiko.AuthenticationException):
        connect(cos)


def test_eleventh_session_is_refused(client: paramiko.SSHClient, cos: MockHost) -> None:
    transport = client.get_transport()
    assert transport is not None
    channels = [transport.open_session() for _ in range(10)]
    with pytest.raises(paramiko.ChannelException):
        transport.open_session()
    assert cos.stats.refused_channels == 1
    channels[0].exec_command("echo alive")
    assert channels[0].makefile().read() == b"alive\n"
    assert channels[0].recv_exit_status() == 0
    channels[0].close()
    assert eventually(lambda: _opens(transport))


def _opens(transport: paramiko.Transport) -> bool:
    try:
        transport.open_session(timeout=5)
    except paramiko.ChannelException:
        return False
    return True


def test_refuse_channels_fault_refuses_sessions(client: paramiko.SSHClient, cos: MockHost) -> None:
    cos.faults.refuse_channels = True
    with pytest.raises(paramiko.ChannelException):
        client.exec_command("true")


def test_keepalive_requests_are_answered(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport is not None
    assert (
        transport.global_request("keepalive@openssh.com", wait=True) is None
    )  # refused, as OpenSSH does: an answer all the same
    assert transport.is_active()


# --- terminals ------------------------------------------------------------------------------------


def test_terminal_has_requested_size_and_follows_resize(
    client: paramiko.SSHClient,
) -> None:
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.get_pty("vt100", 91, 33)
    channel.exec_command(
        "test -t 0 && test -t 1 && stty size; echo $TERM; trap 'stty size; exit 7' "
        "WINCH; echo ready; while :; do sleep 0.1; done"
    )
    text = b""
    while b"ready" not in text:
        text += channel.recv(1000)
    assert text.split() == [b"33", b"91", b"vt100", b"ready"]
    channel.resize_pty(120, 40)
    assert channel.makefile().read().split() == [b"40", b"120"]
    assert channel.recv_exit_status() == 7


def test_control_c_interrupts_terminal_program(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.get_pty()
    channel.exec_command(
        "trap 'echo caught; exit 130' INT; echo ready; while :; do sleep 0.1; done"
    )
    text = b""
    while b"ready" not in text:
        text += channel.recv(1000)
    channel.sendall(b"\x03")
    assert b"caught" in channel.makefile().read()
    assert channel.recv_exit_status() == 130


def test_interactive_shell_keeps_variables(client: paramiko.SSHClient, cos: MockHost) -> None:
    channel = client.invoke_shell()
    channel.sendall(b"x=4\nexit $((x + 1))\n")
    assert channel.recv_exit_status() == 5
    assert cos.stats.shells == 1


def test_terminal_programs_end_with_connection(cos: MockHost) -> None:
    connected = connect(cos)
    transport = connected.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.get_pty()
    channel.exec_command("echo ready; sleep 1001")
    channel.recv(100)
    connected.close()
    assert eventually(lambda: cos.run("pgrep -f 'sleep 100[1]'").status == 1)


# --- what goes wrong ------------------------------------------------------------------------------


def test_command_without_terminal_outlives_connection(
    cos: MockHost,
) -> None:
    connected = connect(cos)
    feed, out, _ = connected.exec_command(
        "echo ready; cat >/dev/null; echo gone >ended; sleep 1002"
    )
    feed.write("some input\n")
    feed.flush()
    assert out.readline() == "ready\n"
    connected.close()
    assert eventually(lambda: cos.path("/home/user/ended").exists())
    assert cos.run("pgrep -f 'sleep 100[2]'").status == 0


def test_writing_command_gets_sigpipe_after_dropped_connection(cos: MockHost) -> None:
    connected = connect(cos)
    _, out, _ = connected.exec_command("echo ready; while echo more; do sleep 0.05; done; :")
    assert out.readline() == "ready\n"
    connected.close()
    assert eventually(lambda: cos.run("pgrep -f 'while ech[o]'").status == 1)


@pytest.mark.parametrize("limit", [0, 1, 1000, 65536])
def test_connection_drops_after_output_limit(cos: MockHost, limit: int) -> None:
    cos.faults.cut_after_output = limit
    connected = connect(cos)
    _, out, _ = connected.exec_command("head -c 100000 /dev/zero")
    assert len(out.read()) <= limit
    assert out.channel.recv_exit_status() == -1
    assert vars(cos.faults)["cut_after_output"] is None, "the fault acts once"
    with connect(cos) as again:
        assert ask(again, "echo fine").out == "fine\n"


def test_connection_drops_after_input_limit(cos: MockHost) -> None:
    cos.faults.cut_after_input = 5000
    with connect(cos) as connected:
        feed, out, _ = connected.exec_command("cat >got")
        with pytest.raises(OSError):  # noqa: PT011 - a closed socket has many faces
            _send_a_lot(feed.channel)
        assert out.channel.recv_exit_status() == -1
    got = cos.path("/home/user/got")
    assert eventually(got.exists)
    assert got.stat().st_size < 5000


def _send_a_lot(channel: paramiko.Channel) -> None:
    for _ in range(1000):
        channel.sendall(b"x" * 1000)
        time.sleep(0.002)


def test_banner_delay_delays_client(cos: MockHost) -> None:
    cos.faults.banner_delay_s = 30
    with socket.create_connection(("127.0.0.1", cos.host.port), timeout=5) as sock:
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_stderr_flood_does_not_block_stdout(cos: MockHost) -> None:
    cos.faults.stderr_flood = 300_000
    with connect(cos) as connected:
        answer = ask(connected, "echo through")
    assert answer.out == "through\n"
    assert len(answer.err) == 300_000


def test_login_noise_precedes_output(cos: MockHost) -> None:
    cos.faults.login_noise = "Welcome!\n"
    with connect(cos) as connected:
        assert ask(connected, "echo mine").out == "Welcome!\nmine\n"


def test_client_sees_changed_host_key(cos: MockHost) -> None:
    before = cos.host.host_key
    cos.change_host_key()
    assert cos.host.host_key != before
    with connect(cos) as connected:
        assert ask(connected, "true").status == 0


def test_exchange_over_ssh_is_fast(client: paramiko.SSHClient) -> None:
    times = []
    for _ in range(10):
        start = time.perf_counter()
        ask(client, "true")
        times.append(time.perf_counter() - start)
    assert min(times) < 0.04, "Nagle's algorithm alone costs 44 ms a command"


# --- forwarding and files -------------------------------------------------------------------------


def test_port_forwarding_reaches_loopback_only(client: paramiko.SSHClient, cos: MockHost) -> None:
    transport = client.get_transport()
    assert transport is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_greet, args=(listener,), daemon=True).start()
        channel = transport.open_channel(
            "direct-tcpip", listener.getsockname()[:2], ("127.0.0.1", 0)
        )
        assert channel.recv(100) == b"hello"
        channel.close()
    assert cos.stats.forwards == 1
    with pytest.raises(paramiko.ChannelException):
        transport.open_channel("direct-tcpip", ("192.0.2.1", 22), ("127.0.0.1", 0))


def _greet(listener: socket.socket) -> None:
    caller, _ = listener.accept()
    with caller:
        caller.sendall(b"hello")


def test_sftp_reads_and_writes_host_files(client: paramiko.SSHClient, cos: MockHost) -> None:
    with client.open_sftp() as sftp:
        assert sftp.normalize(".") == "/home/user"
        with sftp.open("a b", "w") as file:
            file.write("text")
        sftp.chmod("a b", 0o600)
        assert sftp.stat("a b").st_size == 4
        sftp.posix_rename("a b", "/tmp/moved")
        assert "moved" in sftp.listdir("/tmp")
        assert ask(client, 'cat "$PROVISION_MOCK_ROOT/tmp/moved"').out == "text"
        with pytest.raises(OSError, match="denied"), sftp.open("/var/lib/x", "w"):
            pass
        with pytest.raises(OSError, match="denied"):
            sftp.listdir("/root")
    assert cos.stats.sftp_sessions == 1


def test_sftp_does_not_follow_links_out_of_host(client: paramiko.SSHClient, cos: MockHost) -> None:
    cos.run("ln -s /etc ~/way-out; ln -s /etc/hosts ~/hosts")
    with client.open_sftp() as sftp:
        with pytest.raises(OSError, match="denied"):
            sftp.listdir("way-out")
        with pytest.raises(OSError, match="denied"), sftp.open("hosts", "r"):
            pass


def test_stats_count_all_requests(client: paramiko.SSHClient, cos: MockHost) -> None:
    ask(client, "true")
    ask(client, "false")
    assert (cos.stats.connections, cos.stats.exchanges, cos.stats.commands) == (
        1,
        2,
        ["true", "false"],
    )
    assert min(cos.stats.bytes_in, cos.stats.bytes_out) > 1000
    cos.stats.reset()
    assert (cos.stats.exchanges, cos.stats.bytes_in, cos.stats.commands) == (0, 0, [])
