"""Scripts as data: quoting, masks, limits."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import UsageError
from provision.core.job import Section
from provision.core.shell import (
    RemotePath,
    Secret,
    command,
    fields,
    join,
    payload,
    quote,
    script,
)

# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("plain", "plain"),
        ("/a/b-c_d.e:f@g%h+i=j,k", "/a/b-c_d.e:f@g%h+i=j,k"),
        ("", "''"),
        ("a b", "'a b'"),
        ("it's", "'it'\\''s'"),
        ("-rf", "-rf"),
        ("~", "'~'"),
        ("a\n", "'a\n'"),
        ("ü", "'ü'"),
        (7, "7"),
        (RemotePath("/var/lib/x"), '"$R"/var/lib/x'),
        (RemotePath("/it's"), "\"$R\"'/it'\\''s'"),
        (RemotePath("/a") / "b c", "\"$R\"'/a/b c'"),
        (RemotePath("/") / "b", '"$R"/b'),
        (Secret("hunter2"), "hunter2"),
        (join("a", RemotePath("/b"), Secret("c d")), "a\"$R\"/b'c d'"),
        (join(), "''"),
        (join("", ""), "''''"),
    ],
)
def test_words_are_quoted_only_where_needed(word: str, text: str) -> None:
    assert quote(word) == text


@pytest.mark.parametrize("word", ["a\0b", Secret("\0"), RemotePath("/\0"), join("a", "\0")])
def test_word_with_nul_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="NUL"):
        quote(word)


def test_word_without_utf8_encoding_is_refused() -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        quote("\ud800")
    assert (
        quote("\udcff") == "'\udcff'"
    )  # a byte of a file name that is not UTF-8, as Python keeps it


def test_relative_remote_path_is_refused() -> None:
    with pytest.raises(UsageError, match="absolute"):
        RemotePath("var/lib")


@pytest.mark.parametrize("name", ["R", "PATH", "a-b", "1a", "", "a b", "a\n", "ä"])
def test_binding_name_must_be_lower_case(name: str) -> None:
    with pytest.raises(UsageError, match="lower-case"):
        script(":", **{name: "x"})


def test_bindings_are_rendered_in_order_before_the_source() -> None:
    made = script("\n\necho hi\n\n", argv=["x", "y z"], b="2", a="1").with_bindings({"c": "3"})
    assert made.render() == "c=3\nb=2\na=1\nset -- x 'y z'\necho hi\n"


def test_command_renders_its_words() -> None:
    assert command("rm", "-rf", "a b").render() == "set -- rm -rf 'a b'\n\"$@\"\n"


def test_empty_argv_clears_the_positional_parameters() -> None:
    assert script("echo", argv=[]).render() == "set --\necho\n"


# --- secrets --------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0<"), min_size=12))
def test_secret_is_never_printed(value: str) -> None:
    secret = Secret("<<" + value + ">>")
    made = script(
        "echo",
        argv=[secret, join("--token=", secret)],
        token=secret,
        path=join(RemotePath("/a"), secret),
    )
    for shown in (
        str(secret),
        repr(secret),
        f"{secret}",
        str(made),
        repr(made),
        str(join("a", secret)),
        repr(Section("k", made, 1.0)),
    ):
        assert value not in shown
    assert made.render().count("<<") == 4


def test_masked_script_shows_the_position_of_a_secret() -> None:
    assert (
        str(script("echo", argv=[Secret("x")], token=join("a=", Secret("y"))))
        == "token=a='***'\nset -- '***'\necho\n"
    )


# --- payloads -------------------------------------------------------------------------------------


@given(st.binary(max_size=2000))
def test_payload_is_base64_in_lines(data: bytes) -> None:
    text = payload(data)
    assert base64.b64decode(text) == data
    assert all(len(line) <= 76 for line in text.splitlines())


# --- fields ---------------------------------------------------------------------------------------


def test_fields_are_read_from_key_value_lines() -> None:
    assert fields("a=1\n b =2=3\nnothing\na=4\n=5\n") == {"a": "4", "b": "2=3", "": "5"}


@pytest.mark.parametrize(
    "separator", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_only_a_line_feed_ends_a_field(separator: str) -> None:
    assert fields(f"a=1{separator}b=2\n") == {"a": f"1{separator}b=2"}


def test_script_file_is_sent_without_comments_behind_its_shared_functions(tmp_path: Path) -> None:
    library, file = tmp_path / "lib.sh", tmp_path / "enable.sh"
    library.write_text("# shellcheck shell=sh\nask() { echo asked; }\n")
    file.write_text('#!/bin/sh\n: "${pipe:?}"\n\n# A reason.\nask "$pipe" # stays\n')
    made = script(file, uses=(str(library),), pipe="/run/mps")
    assert (
        made.render()
        == 'pipe=/run/mps\nask() { echo asked; }\n: "${pipe:?}"\nask "$pipe" # stays\n'
    )
