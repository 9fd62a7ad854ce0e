"""Quoting: the reader of a file gets every value back, or the filter refuses the value."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.core.errors import TemplateError
from provision.core.model import Host
from provision.templating import FILTERS, render, ssh_config

ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NASTY = st.sampled_from(
    [
        '"; rm -rf / #',
        "a\nb: c",
        "$(id)",
        "`id`",
        "${HOME}",
        "x\\",
        "\\n",
        "%i %%",
        "{{ x }}",
        "a\u2028b",
        "\x85",
        "😀",
        "\ufeff",
        "'",
    ]
)
TEXT = ANY | NASTY
ONE_LINE = TEXT.filter(lambda text: re.search(r"[\x00-\x1f\x7f\x85\u2028\u2029]", text) is None)


def quote(name: str, value: object) -> str:
    return str(FILTERS[name](value))


@given(
    st.recursive(
        TEXT | st.booleans() | st.none() | st.integers(),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
)
def test_yaml_value_survives_a_round_trip(value: object) -> None:
    read = yaml.safe_load(f"key: {quote('yaml', value)}\nafter: 1\n")
    assert read == {"key": value, "after": 1}


@given(TEXT)
def test_yaml_text_is_one_printable_line(value: str) -> None:
    assert quote("yaml", value).isprintable()


@given(st.lists(TEXT))
def test_json_value_survives_a_round_trip(value: list[str]) -> None:
    assert json.loads(quote("json", value)) == value
    assert "\n" not in quote("json", value), "Docker reads an instruction line by line"


@given(TEXT)
def test_base64_text_survives_a_round_trip(value: str) -> None:
    assert base64.b64decode(quote("b64", value), validate=True).decode() == value


def systemd_words(line: str) -> list[str]:
    """The arguments that systemd reads from an Exec line (systemd.service, systemd.syntax)."""
    words = re.findall(r'(?:[^\s"]|"(?:\\.|[^"\\])*")+', line)
    plain = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}

    def unescape(found: re.Match[str]) -> str:
        text = found[1]
        return chr(int(text[1:], 16)) if text[0] == "x" else plain[text]

    unquoted = [
        re.sub(r"\\(x[0-9a-f]{2}|.)", unescape, word[1:-1]) if word.startswith('"') else word
        for word in words
    ]
    return [word.replace("%%", "%").replace("$$", "$") for word in unquoted]


@given(TEXT.filter(lambda text: "\u2028" not in text))
def test_systemd_word_survives_a_round_trip(value: str) -> None:
    line = quote("systemd_word", value)
    assert "\n" not in line
    assert systemd_words(f"/bin/sh {line} end") == ["/bin/sh", value, "end"]
    assert not re.search(r"(?<!%)(?:%%)*%(?!%)", line), "a single % would be a specifier"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "apt_package",
            ["git", "libc6:amd64", "g++=4:12.2.0-3"],
            ["git vim", "git;id", "-o", "Git", "", "a\n"],
        ),
        ("env_name", ["A", "_x9"], ["1A", "A B", "A=1", "", "A\n"]),
        (
            "image_ref",
            ["a/b:1", "localhost:5000/a:x", "r.io/p/q@sha256:" + "0" * 64],
            ["a b", "A:1", "a:1\nRUN id", "$X", "a:", "-a", ""],
        ),
        ("docker_path", ["src", "a b/é.py"], ["$X", "a*", 'a"b', "a\nb", "a\\b", "a'b", ""]),
        ("python_name", ["torch", "a.b_c"], ["a-b", "a;b", "1a", "a.", ""]),
        ("ssh_host", ["dev", "a.b-c"], ["*", "a b", "!a", "a,b", "-x", ""]),
        (
            "seed_path",
            ["boot.sh", "boot.d/10-x.sh"],
            ["/boot.sh", "../boot.sh", "boot.d/../x.sh", "boot.d/a b.sh"],
        ),
        ("version", ["3.11", "2.77.0rc1"], ["$(id)", "'3'", "", "3 11"]),
        ("comment", ["plain é"], ["a\nRUN id", "a\rb", "\x1b[2J", "a\u2028b"]),
        ("docker_env", ["", " ", "\t"], ["a\nb", "a\rb", "a\0b", "\ud800"]),
        ("verbatim", ["a\nb"], ["\0", "\ud800", 5, None]),
        ("json", [["a"], {"b": 1}], ["\ud800"]),
        ("yaml", [True, None, ["x", 1]], ["\0", {"a": 1}, 1.5, object()]),
        ("ssh_word", ["a", "a b", "é"], ["", 'a"b', "a\\b", "a\nb"]),
        ("ssh_path", ["/a b", "/100%"], ["/${HOME}/x", '/a"b', "/a\nb"]),
    ],
)
def test_filter_accepts_valid_and_refuses_invalid_values(
    name: str, good: list[object], bad: list[object]
) -> None:
    for value in good:
        FILTERS[name](value)
    for value in bad:
        with pytest.raises(ValueError, match=r"."):
            FILTERS[name](value)


# --- ssh_config, read by ssh itself ---------------------------------------------------------------

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client")
SSH_TEXT = ONE_LINE.filter(
    lambda text: text.strip() == text != "" and not re.search(r'["\\]|\$\{|[^\x20-\x7e]|^~', text)
)


@pytest.fixture(scope="module")
def ask_ssh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, str]]:
    folder = tmp_path_factory.mktemp("ssh")

    def ask(config: str, host: str) -> dict[str, str]:
        (folder / "config").write_text(config, encoding="utf-8")
        done = subprocess.run(
            ["ssh", "-G", "-F", folder / "config", host],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)

    return ask


@needs_ssh
@settings(max_examples=25)
@given(identity=SSH_TEXT, known_hosts=SSH_TEXT)
def test_ssh_reads_the_configured_paths(
    ask_ssh: Callable[[str, str], dict[str, str]], identity: str, known_hosts: str
) -> None:
    host = Host(name="dev", address="192.0.2.1", identity=f"/k/{identity}", key_alias="compute.1")
    seen = ask_ssh(ssh_config([host], known_hosts=f"/s/{known_hosts}", control_dirs=["/c"]), "dev")
    assert seen["identityfile"].replace("%%", "%") == f"/k/{identity}", (
        "ssh -G prints this one before it expands tokens"
    )
    assert seen["userknownhostsfile"].strip('"') == f"/s/{known_hosts}"
    assert seen["stricthostkeychecking"] in {"true", "yes"}


@needs_ssh
def test_ssh_reads_every_setting_of_a_host(ask_ssh: Callable[[str, str], dict[str, str]]) -> None:
    hosts = [
        Host(
            name="dev",
            address="192.0.2.1",
            port=2222,
            user="me",
            identity="/home/a b/key",
            key_alias="compute.42",
        ),
        Host(
            name="lab",
            address="lab.example",
            proxy=("/g c/gcloud", "start-iap-tunnel", "100%p", "22"),
        ),
    ]
    text = ssh_config(hosts, known_hosts="/s/known hosts", control_dirs=["/s/c d"])
    dev, lab = ask_ssh(text, "dev"), ask_ssh(text, "lab")
    assert (dev["hostname"], dev["port"], dev["user"]) == ("192.0.2.1", "2222", "me")
    assert dev["identityfile"] == "/home/a b/key"
    assert dev["identitiesonly"] == "yes"
    assert dev["hostkeyalias"] == "compute.42"
    assert dev["controlmaster"] == "auto"
    assert dev["controlpersist"] == "600"
    assert dev["controlpath"].startswith("/s/c d/")
    assert "proxycommand" not in dev
    assert lab["proxycommand"].replace("%%", "%") == "'/g c/gcloud' start-iap-tunnel 100%p 22"
    assert lab["port"] == "22"
    assert lab["controlpath"] != dev["controlpath"]


@needs_ssh
def test_unpinned_host_key_is_looked_up_in_the_users_files(
    ask_ssh: Callable[[str, str], dict[str, str]],
) -> None:
    hosts = [
        Host(name="lab", address="lab.example"),
        Host(name="set", address="set.example", host_key="ssh-ed25519 AAAA"),
        Host(name="vm", address="192.0.2.1", key_alias="compute.1"),
    ]
    text = ssh_config(hosts, known_hosts="/s/known hosts", control_dirs=["/c"])
    files = ask_ssh(text, "lab")["userknownhostsfile"]
    assert re.fullmatch(
        r"/s/known hosts \S+/.ssh/known_hosts \S+/.ssh/known_hosts2", files.replace('"', "")
    )
    for name in ("set", "vm"):
        assert ask_ssh(text, name)["userknownhostsfile"].strip('"') == "/s/known hosts"


@needs_ssh
@pytest.mark.parametrize(("length", "shared"), [(45, True), (46, False)])
def test_connections_are_shared_when_the_socket_path_fits(
    ask_ssh: Callable[[str, str], dict[str, str]], length: int, shared: bool
) -> None:
    text = ssh_config(
        [Host(name="dev", address="192.0.2.1")],
        known_hosts="/k",
        control_dirs=["/" + "d" * (length - 1)],
    )
    seen = ask_ssh(text, "dev")
    assert (seen["controlmaster"] == "auto") is shared
    assert ("controlpath" in seen) is shared
    assert not shared or len(seen["controlpath"]) + len(".0123456789abcdef") <= 103


@needs_ssh
def test_sockets_are_in_the_first_folder_that_is_short_enough(
    ask_ssh: Callable[[str, str], dict[str, str]],
) -> None:
    folders = ["/" + "d" * 60, "/short", "/s"]
    seen = ask_ssh(
        ssh_config([Host(name="dev", address="192.0.2.1")], known_hosts="/k", control_dirs=folders),
        "dev",
    )
    assert seen["controlpath"].startswith("/short/")


def test_host_that_ssh_config_cannot_hold_is_refused() -> None:
    for host in (
        Host(name="a b", address="x"),
        Host(name="a", address="x\nProxyCommand id"),
        Host(name="a", address="x", identity='/"'),
    ):
        with pytest.raises(TemplateError):
            ssh_config([host], known_hosts="/k", control_dirs=["/c"])


def test_shell_scripts_are_rendered_unchanged() -> None:
    # A script gets its values as arguments or from files: it has no variable of the template.
    folder = Path(__file__).parents[2] / "templates"
    scripts = sorted(folder.glob("*.sh"))
    assert len(scripts) >= 2
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        assert render(script.name, {}, project_dir=None) == text
        assert re.search(r"\{[{%#]", text) is None, script
