"""Filters that quote a value for the language of the file it goes into, one per language and place.

A filter returns `Quoted` text and raises `Unquotable` for a value that the language cannot hold.
Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import NoReturn


class Quoted(str):
    """Text that is already in the language of the file it goes into."""

    __slots__ = ()


class Unquotable(ValueError):
    """A value that the language of the file cannot hold."""


def _text(value: object) -> str:
    """`value`, a string without NUL that UTF-8 can hold. Raises `Unquotable` for anything else."""
    if not isinstance(value, str):
        raise Unquotable(f"{value!r} is {type(value).__name__}, not text")
    if "\0" in value:
        raise Unquotable(f"{value!r} holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unquotable(f"{value!r} holds half of a surrogate pair, which UTF-8 cannot") from None
    return value


def _one_line(value: object, of: str) -> str:
    text = _text(value)
    if re.search(r"[\x00-\x1f\x7f\x85\u2028\u2029]", text):
        raise Unquotable(f"{text!r} holds a line break or a control character, which {of} cannot")
    return text


def _matching(pattern: str, what: str) -> Callable[[object], Quoted]:
    """A filter for words that need no quotes; it refuses what does not match `pattern`."""
    compiled = re.compile(pattern)

    def check(value: object) -> Quoted:
        text = _text(value)
        if compiled.fullmatch(text) is None:
            raise Unquotable(f"{text!r} is not {what}")
        return Quoted(text)

    return check


def _to_json(value: object, indent: int | None = None, nested: int = 0) -> Quoted:
    """JSON, for devcontainer.json and for the array form of Dockerfile instructions.

    `nested` is the indentation of the line on which the value begins.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False, default=_not_json)
    return Quoted(_text(text).replace("\n", "\n" + " " * nested))


def _not_json(value: object) -> NoReturn:
    # Not its repr: the text of an undefined value states what is missing.
    raise Unquotable(f"{value} is nothing that JSON can hold")


_YAML_NAMED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _to_yaml(value: object) -> Quoted:
    """A scalar or flow list that YAML 1.1 and 1.2 read alike.

    JSON would not do: YAML reads its surrogate escapes and a raw U+2028 differently.
    """
    match value:
        case str():
            text = "".join(map(_yaml_character, _text(value)))
            return Quoted(f'"{text}"')
        case None | bool() | int():
            return Quoted(json.dumps(value))
        case list() | tuple():
            return Quoted(f"[{', '.join(_to_yaml(item) for item in value)}]")
        case _:
            raise Unquotable(
                f"{value!r} is neither text, integer, boolean, null nor a list of them"
            )


def _yaml_character(character: str) -> str:
    if character in _YAML_NAMED:
        return _YAML_NAMED[character]
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _docker_env(value: object) -> Quoted:
    """The value of ENV or LABEL in double quotes; Docker has no way to write a line break there."""
    text = _text(value)
    if "\n" in text or "\r" in text:
        raise Unquotable(
            f"{text!r} holds a line break, which ENV and LABEL in a Dockerfile cannot;"
            " give it to the container instead"
        )
    return Quoted('"' + re.sub(r'([\\"$])', r"\\\1", text) + '"')


def _systemd_word(value: object) -> Quoted:
    """One word of an Exec line (systemd.service, "Command lines").

    It has C escapes; `%` and `$` are doubled.
    """
    text = _text(value)
    if re.fullmatch(r"[A-Za-z0-9_/.:=@,+-]+", text):
        return Quoted(text)
    escaped = re.sub(r'([\\"])', r"\\\1", text).replace("%", "%%").replace("$", "$$")
    return Quoted(
        '"' + re.sub(r"[\x01-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", escaped) + '"'
    )


def _ssh_word(value: object) -> Quoted:
    """One argument of ssh_config, in double quotes where needed.

    Before OpenSSH 8.7 nothing could be escaped within them, so a quote or a backslash is refused.
    """
    text = _one_line(value, "ssh_config")
    if not text or '"' in text or "\\" in text:
        raise Unquotable(
            f"{text!r} is empty or holds a double quote or a backslash, which ssh_config cannot"
        )
    return Quoted(text if re.fullmatch(r"[A-Za-z0-9_/.:@%+~-]+", text) else f'"{text}"')


def _ssh_path(value: object, tokens: str = "") -> Quoted:
    """A path of ssh_config, where `%` begins a token; `tokens` are added as they are.

    `${` begins a variable, which cannot be escaped, so it is refused.
    """
    text = _one_line(value, "ssh_config")
    if "${" in text:
        raise Unquotable(f"{text!r} holds '${{', which ssh takes for a variable of the environment")
    return _ssh_word(text.replace("%", "%%") + tokens)


def _b64(value: object) -> Quoted:
    """Text as one line of base64 of its UTF-8 bytes."""
    return Quoted(base64.b64encode(_text(value).encode()).decode("ascii"))


_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
IMAGE_REFERENCE = rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_NAME}(?:/{_NAME})*{_TAG}"
"""A Docker image reference (distribution reference grammar); the digest is SHA-256, the only one
that registries serve."""

FILTERS: Mapping[str, Callable[..., Quoted]] = {
    "apt_package": _matching(
        r"[a-z0-9][a-z0-9+.-]*(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+)?",
        "NAME, NAME:ARCH or NAME=VERSION of a Debian package",
    ),
    "b64": _b64,
    "comment": lambda value: Quoted(_one_line(value, "a comment")),
    "docker_env": _docker_env,
    "docker_path": _matching(
        r"[^\\\"'$*?\[\]\x00-\x1f\x7f]+",
        "a path without quotes, '$', '\\', wildcards and control characters",
    ),
    "env_name": _matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable"),
    "image_ref": _matching(IMAGE_REFERENCE, "an image reference"),
    "json": _to_json,
    "python_name": _matching(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*", "the dotted name of a Python module"),
    "seed_path": _matching(r"boot\.sh|boot\.d/[A-Za-z0-9_-]+\.sh", "boot.sh or boot.d/NAME.sh"),
    "ssh_command": lambda value: Quoted(_one_line(value, "ssh_config")),
    "ssh_host": _matching(
        r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "a host alias (letters, digits, '.', '_' and '-')"
    ),
    "ssh_path": _ssh_path,
    "ssh_word": _ssh_word,
    "systemd_word": _systemd_word,
    "verbatim": lambda value: Quoted(_text(value)),
    "version": _matching(r"[0-9][A-Za-z0-9.!+_-]*", "a version number"),
    "yaml": _to_yaml,
}
"""The filters of the templates, by name."""
