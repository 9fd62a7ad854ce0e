"""Known host keys: look-up, pinning, and the errors for unknown and changed keys."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import HostKeyMismatch, UsageError
from provision.core.model import Host
from provision.hosts.host_keys import HostKey, pin_name
from provision.hosts.known_hosts import KnownHosts

ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhAqcVaWAMCSKt6NHhRBhFcyISvgC0pbZAKHPHg2zxL"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICs4zTd2SBmzFQwbYqAShqsdwbvZo4TzuxFCzVSm9BYD"
HOST = Host(name="dev", address="vm.example")


@pytest.fixture
def known(tmp_path: Path) -> KnownHosts:
    return KnownHosts(tmp_path / "state" / "known_hosts", [tmp_path / "user"])


def keys(known: KnownHosts, name: str) -> list[str]:
    return [pin.key.line for pin in known.pins(HOST, name).known]


def test_fingerprint_equals_ssh_keygens(tmp_path: Path) -> None:
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
def test_invalid_key_line_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="not a host key line"):
        HostKey.parse(line)


def test_comment_after_key_is_ignored() -> None:
    assert HostKey.parse(ED + " root@host, installed 2025").line == ED


@pytest.mark.parametrize(
    ("port", "alias", "name"),
    [(22, None, "a.b"), (2222, None, "[a.b]:2222"), (2222, "4711", "4711")],
)
def test_pin_name_of_address_port_and_alias(port: int, alias: str | None, name: str) -> None:
    assert pin_name("a.b", port, alias) == name


def test_pinning_the_same_key_twice_writes_once(known: KnownHosts) -> None:
    assert known.pin("4711", ED)
    assert not known.pin("4711", ED + " another comment")
    assert known.own.read_text() == f"4711 {ED}\n"
    assert keys(known, "4711") == [ED]
    assert keys(known, "471") == []


def test_pinning_keeps_existing_lines(known: KnownHosts) -> None:
    known.own.parent.mkdir()
    known.own.write_text("# mine\nother " + OTHER)  # no newline at the end
    known.pin("[a]:22", ED)
    assert known.own.read_text() == f"# mine\nother {OTHER}\n[a]:22 {ED}\n"


def test_concurrent_pinning_keeps_every_key(known: KnownHosts) -> None:
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
def test_pinned_alias_is_found_again_or_refused(
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


def test_forget_removes_only_keys_of_the_alias(known: KnownHosts) -> None:
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
def test_known_hosts_file_of_user_is_read(known: KnownHosts, line: str) -> None:
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
def test_known_hosts_lines_of_other_hosts_are_skipped(known: KnownHosts, line: str) -> None:
    known.others[0].write_text(line + "\n")
    assert keys(known, "vm.example") == []


def test_truncated_key_in_file_is_skipped(known: KnownHosts) -> None:
    """A truncated line must not make the correct key look changed."""
    known.others[0].write_text(
        f"vm.example {ED[:-6]}\nvm.example sk-ssh-ed25519@openssh.com AAAA\n"
    )
    assert keys(known, "vm.example") == []
    with pytest.raises(HostKeyMismatch, match="the host's key is unknown"):
        known.pins(HOST, "vm.example").verify(HostKey.parse(ED))


def test_brackets_in_name_are_not_a_character_class(known: KnownHosts) -> None:
    known.others[0].write_text(f"[vm.example]:2222 {ED}\n")
    assert keys(known, "[vm.example]:2222") == [ED]
    assert keys(known, "v:2222") == []


def test_hashed_host_name_is_found(known: KnownHosts) -> None:
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


def test_host_key_setting_overrides_every_file(known: KnownHosts) -> None:
    known.pin("vm.example", OTHER)
    pins = known.pins(Host(name="dev", address="vm.example", host_key=ED), "vm.example")
    assert [(pin.key.line, pin.source) for pin in pins.known] == [
        (ED, "provision.hosts.dev.host_key")
    ]


def test_unknown_key_error_shows_seen_key_and_setting_to_add(known: KnownHosts) -> None:
    with pytest.raises(HostKeyMismatch, match="unknown") as caught:
        known.pins(HOST, "vm.example").verify(HostKey.parse(ED))
    error = caught.value
    assert error.exit_code == 4
    assert error.where == "dev"
    assert error.why.splitlines() == [
        "expected: no key is pinned for vm.example",
        f"seen:     ssh-ed25519 {HostKey.parse(ED).fingerprint}",
    ]
    assert error.fix.endswith(f"provision.hosts.dev.host_key: '{ED}'")


def test_changed_key_error_shows_both_keys_and_how_to_remove_the_old_one(known: KnownHosts) -> None:
    known.pin("4711", OTHER)
    with pytest.raises(HostKeyMismatch, match="changed") as caught:
        known.pins(HOST, "4711").verify(HostKey.parse(ED))
    assert HostKey.parse(OTHER).fingerprint in caught.value.why
    assert HostKey.parse(ED).fingerprint in caught.value.why
    assert f"ssh-keygen -f {known.own} -R 4711" in caught.value.fix


def test_unknown_vm_key_error_suggests_vm_create(known: KnownHosts) -> None:
    with pytest.raises(HostKeyMismatch) as caught:
        known.pins(Host(name="dev", address="vm.example", key_alias="4711"), "4711").verify(
            HostKey.parse(ED)
        )
    assert caught.value.fix.startswith("invoke vm.create --name dev")


def test_suggested_fix_for_changed_key_works(known: KnownHosts) -> None:
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


def test_revoked_key_is_refused_even_when_pinned(known: KnownHosts) -> None:
    known.pin("vm.example", ED)
    known.others[0].write_text(f"@revoked * {ED}\n")
    with pytest.raises(HostKeyMismatch, match="revoked"):
        known.pins(HOST, "vm.example").verify(HostKey.parse(ED))


def test_each_of_several_pinned_keys_is_accepted(known: KnownHosts) -> None:
    known.pin("vm.example", OTHER)
    known.others[0].write_text(f"vm.example {ED}\n")
    known.pins(HOST, "vm.example").verify(HostKey.parse(ED))
    known.pins(HOST, "vm.example").verify(HostKey.parse(OTHER))


def test_algorithms_are_those_of_pinned_keys(known: KnownHosts) -> None:
    known.pin("vm.example", ED)
    assert known.pins(HOST, "vm.example").algorithms() == ("ssh-ed25519",)
    assert known.pins(HOST, "elsewhere").algorithms() == ()


def test_files_argument_replaces_other_files(known: KnownHosts, tmp_path: Path) -> None:
    known.others[0].write_text(f"vm.example {ED}\n")
    (tmp_path / "special").write_text(f"vm.example {OTHER}\n")
    assert [
        pin.key.line for pin in known.pins(HOST, "vm.example", files=[tmp_path / "special"]).known
    ] == [OTHER]


def test_replace_swaps_keys_of_the_alias(known: KnownHosts) -> None:
    known.pin("47110", ED)
    known.pin("4711", ED)
    assert not known.replace("4711", [ED])
    assert known.replace("4711", [OTHER])
    assert known.own.read_text() == f"47110 {ED}\n4711 {OTHER}\n"
    assert not known.replace("4711", [])
    with pytest.raises(UsageError):
        known.replace("47*", [ED])
