"""What is pinned, how it is found, and what is said when it does not fit."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import HostKeyMismatch, UsageError
from provision.core.model import Host
from provision.hosts.known_hosts import HostKey, KnownHosts, pin_name

ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhAqcVaWAMCSKt6NHhRBhFcyISvgC0pbZAKHPHg2zxL"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICs4zTd2SBmzFQwbYqAShqsdwbvZo4TzuxFCzVSm9BYD"
HOST = Host(name="dev", address="vm.example")


@pytest.fixture
def known(tmp_path: Path) -> KnownHosts:
    return KnownHosts(tmp_path / "state" / "known_hosts", [tmp_path / "user"])


def keys(known: KnownHosts, name: str) -> list[str]:
    return [pin.key.line for pin in known.pins(HOST, name).known]


def test_a_fingerprint_is_what_ssh_keygen_prints(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(ED + "\n")
    printed = subprocess.run(
        ["ssh-keygen", "-lf", str(tmp_path / "key.pub")],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    assert HostKey.parse(ED).fingerprint == printed.split()[1]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 ####",
        ED.replace("ssh-ed25519 ", "ssh-rsa "),
        "AAAA ssh-ed25519",
    ],
)
def test_what_is_no_key_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="not a host key line"):
        HostKey.parse(line)


def test_a_comment_after_the_key_is_no_part_of_it() -> None:
    assert HostKey.parse(ED + " root@host, installed 2025").line == ED


@pytest.mark.parametrize(
    ("port", "alias", "name"),
    [(22, None, "a.b"), (2222, None, "[a.b]:2222"), (2222, "4711", "4711")],
)
def test_the_name_a_key_is_pinned_under(port: int, alias: str | None, name: str) -> None:
    assert pin_name("a.b", port, alias) == name


def test_pinning_twice_writes_once(known: KnownHosts) -> None:
    assert known.pin("4711", ED)
    assert not known.pin("4711", ED + " another comment")
    assert known.own.read_text() == f"4711 {ED}\n"
    assert keys(known, "4711") == [ED]
    assert keys(known, "471") == []


def test_pinning_keeps_what_stands_in_the_file(known: KnownHosts) -> None:
    known.own.parent.mkdir()
    known.own.write_text("# mine\nother " + OTHER)  # no newline at the end
    known.pin("[a]:22", ED)
    assert known.own.read_text() == f"# mine\nother {OTHER}\n[a]:22 {ED}\n"


def test_pinning_from_many_threads_loses_nothing(known: KnownHosts) -> None:
    threads = [
        threading.Thread(target=known.pin, args=(f"vm-{number}", ED)) for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(keys(known, f"vm-{number}") == [ED] for number in range(20))
    assert [path.name for path in known.own.parent.iterdir() if path.suffix != ".lock"] == [
        "known_hosts"
    ]


@pytest.mark.slow
@given(alias=st.text(max_size=20))
def test_whatever_is_pinned_is_found_again_or_refused(
    alias: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    known = KnownHosts(tmp_path_factory.mktemp("known") / "known_hosts")
    try:
        known.pin(alias, ED)
    except UsageError:
        return
    assert keys(known, alias) == [ED]
    assert len(known.own.read_text().splitlines()) == 1
    assert known.forget(alias) == 1


def test_forgetting_removes_that_name_only(known: KnownHosts) -> None:
    known.pin("4711", ED)
    known.pin("4711", OTHER)
    known.pin("47110", ED)
    assert known.forget("4711") == 2
    assert known.own.read_text() == f"47110 {ED}\n"
    assert known.forget("4711") == 0


@pytest.mark.parametrize(
    "line",
    [
        f"vm.example,10.0.0.1 {ED}",
        f"*.example {ED}",
        f"VM.Example {ED}",
        f"vm.exampl? {ED} comment",
    ],
)
def test_the_users_file_is_read(known: KnownHosts, line: str) -> None:
    known.others[0].write_text(f"# comment\n\nbroken line\n{line}\n")
    assert keys(known, "vm.example") == [ED]
    assert known.pins(HOST, "vm.example").known[0].source == f"{known.others[0]}:4"


@pytest.mark.parametrize(
    "line",
    [
        f"*.example,!vm.example {ED}",
        f"@cert-authority *.example {ED}",
        f"other {ED}",
        f"#vm.example {ED}",
    ],
)
def test_lines_that_do_not_speak_of_the_host(known: KnownHosts, line: str) -> None:
    known.others[0].write_text(line + "\n")
    assert keys(known, "vm.example") == []


def test_half_a_key_in_a_file_is_no_pin(known: KnownHosts) -> None:
    """What is left of a torn line must not make the true key look like a changed one."""
    known.others[0].write_text(
        f"vm.example {ED[:-6]}\nvm.example sk-ssh-ed25519@openssh.com AAAA\n"
    )
    assert keys(known, "vm.example") == []
    with pytest.raises(HostKeyMismatch, match="the host's key is unknown"):
        known.pins(HOST, "vm.example").verify(HostKey.parse(ED))


def test_a_bracketed_name_is_no_character_class(known: KnownHosts) -> None:
    known.others[0].write_text(f"[vm.example]:2222 {ED}\n")
    assert keys(known, "[vm.example]:2222") == [ED]
    assert keys(known, "v:2222") == []


def test_a_hashed_name_is_found(known: KnownHosts) -> None:
    known.others[0].write_text(f"vm.example {ED}\n[vm.example]:2222 {OTHER}\n")
    subprocess.run(
        ["ssh-keygen", "-H", "-f", str(known.others[0])],
        check=True,
        capture_output=True,
        timeout=20,
    )
    assert "vm.example" not in known.others[0].read_text()
    assert keys(known, "vm.example") == [ED]
    assert keys(known, "[vm.example]:2222") == [OTHER]
    assert keys(known, "vm.exampl") == []


def test_the_setting_overrides_every_file(known: KnownHosts) -> None:
    known.pin("vm.example", OTHER)
    pins = known.pins(Host(name="dev", address="vm.example", host_key=ED), "vm.example")
    assert [(pin.key.line, pin.source) for pin in pins.known] == [
        (ED, "provision.hosts.dev.host_key")
    ]


def test_an_unknown_key_names_what_was_seen_and_the_setting_to_add(known: KnownHosts) -> None:
    with pytest.raises(HostKeyMismatch, match="unknown") as caught:
        known.pins(HOST, "vm.example").verify(HostKey.parse(ED))
    error = caught.value
    assert error.exit_code == 4
    assert error.where == "dev"
    assert error.why.splitlines() == [
        "expected: nothing is pinned for vm.example",
        f"seen:     ssh-ed25519 {HostKey.parse(ED).fingerprint}",
    ]
    assert error.fix.endswith(f"provision.hosts.dev.host_key: '{ED}'")


def test_a_changed_key_names_both_and_how_to_forget_the_old_one(known: KnownHosts) -> None:
    known.pin("4711", OTHER)
    with pytest.raises(HostKeyMismatch, match="changed") as caught:
        known.pins(HOST, "4711").verify(HostKey.parse(ED))
    assert HostKey.parse(OTHER).fingerprint in caught.value.why
    assert HostKey.parse(ED).fingerprint in caught.value.why
    assert f"ssh-keygen -f {known.own} -R 4711" in caught.value.fix


def test_an_unknown_key_of_a_vm_is_pinned_by_the_task_that_makes_vms(known: KnownHosts) -> None:
    with pytest.raises(HostKeyMismatch) as caught:
        known.pins(Host(name="dev", address="vm.example", key_alias="4711"), "4711").verify(
            HostKey.parse(ED)
        )
    assert caught.value.fix.startswith("invoke vm.create --name dev")


def test_the_fix_for_a_changed_key_works(known: KnownHosts) -> None:
    known.pin("[127.0.0.1]:2222", OTHER)
    with pytest.raises(HostKeyMismatch) as caught:
        known.pins(HOST, "[127.0.0.1]:2222").verify(HostKey.parse(ED))
    subprocess.run(
        ["sh", "-c", caught.value.fix.partition(": ")[2]],
        check=True,
        capture_output=True,
        timeout=20,
    )
    assert keys(known, "[127.0.0.1]:2222") == []


def test_a_revoked_key_is_refused_even_if_it_is_pinned_too(known: KnownHosts) -> None:
    known.pin("vm.example", ED)
    known.others[0].write_text(f"@revoked * {ED}\n")
    with pytest.raises(HostKeyMismatch, match="revoked"):
        known.pins(HOST, "vm.example").verify(HostKey.parse(ED))


def test_any_pinned_key_is_good(known: KnownHosts) -> None:
    known.pin("vm.example", OTHER)
    known.others[0].write_text(f"vm.example {ED}\n")
    known.pins(HOST, "vm.example").verify(HostKey.parse(ED))
    known.pins(HOST, "vm.example").verify(HostKey.parse(OTHER))


def test_the_algorithms_of_pinned_keys_come_first(known: KnownHosts) -> None:
    known.pin("vm.example", ED)
    assert known.pins(HOST, "vm.example").algorithms() == ("ssh-ed25519",)
    assert known.pins(HOST, "elsewhere").algorithms() == ()


def test_files_named_for_the_host_replace_the_users(known: KnownHosts, tmp_path: Path) -> None:
    known.others[0].write_text(f"vm.example {ED}\n")
    (tmp_path / "special").write_text(f"vm.example {OTHER}\n")
    assert [
        pin.key.line for pin in known.pins(HOST, "vm.example", files=[tmp_path / "special"]).known
    ] == [OTHER]


def test_replacing_puts_new_keys_in_the_place_of_the_old(known: KnownHosts) -> None:
    known.pin("47110", ED)
    known.pin("4711", ED)
    assert not known.replace("4711", [ED])
    assert known.replace("4711", [OTHER])
    assert known.own.read_text() == f"47110 {ED}\n4711 {OTHER}\n"
    assert not known.replace("4711", [])
    with pytest.raises(UsageError):
        known.replace("47*", [ED])
