"""Templates to text; the only module that imports jinja2.

A template is looked for in the user's own `templates/`, then inside the installed package, then in
the checkout. The shipped one stays reachable as `provision/NAME`, so a project's template may
extend the very template that it replaces.

No value reaches a file unquoted: a bare `{{ name }}` is refused unless `name` is an integer. It has
to pass through a filter that knows the file's language (`json`, `yaml`, `docker_env`, …), which
quotes the value or refuses what that language cannot hold. `verbatim` is the way out for text that
already is in that language.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from provision.core.errors import TemplateError, UsageError
from provision.core.model import Host

if TYPE_CHECKING:
    import jinja2

_HERE = Path(__file__).resolve().parent
SHIPPED = (_HERE / "_templates", _HERE.parent / "templates")
"""Inside a wheel, and beside the package in a checkout (an editable install copies nothing)."""


class Quoted(str):
    """Text that is already in the language of the file it goes into."""

    __slots__ = ()


class _Refused(ValueError):
    """A value that the file's language cannot hold."""


def render(name: str, values: Mapping[str, object], *, project_dir: Path | None) -> str:
    """The text of template `name` with `values`; `project_dir/templates` is asked first.

    Raises `TemplateError` naming the template, the line, what is wrong and which variables exist.
    """
    import jinja2

    environment = _environment(project_dir)
    try:
        return str(environment.get_template(name).render(values))
    except jinja2.TemplateNotFound as error:
        _raise_not_found(str(error.name or name), environment, asked_by=name)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            "the template does not parse",
            where=f"{error.filename or error.name or name}:{error.lineno}",
            why=error.message or "",
            fix="see https://jinja.palletsprojects.com/templates/",
        ) from error
    except (
        jinja2.TemplateError,
        _Refused,
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
    ) as error:
        _raise_failed(error, name, values)


def names(project_dir: Path | None = None) -> list[str]:
    """Every template that can be rendered, the project's own included; parts (`_…`) left out."""
    found = {name for name in _environment(project_dir).list_templates() if "/" not in name}
    return sorted(name for name in found if not name.startswith("_"))


def _environment(project_dir: Path | None) -> jinja2.Environment:
    import jinja2

    class Environment(jinja2.Environment):
        # Macros, blocks and super() join pieces that were each checked on the way in: what they
        # return is quoted.
        concat = staticmethod(_join)

    shipped = jinja2.FileSystemLoader([str(folder) for folder in SHIPPED])
    loaders: list[jinja2.BaseLoader] = [shipped, jinja2.PrefixLoader({"provision": shipped})]
    if project_dir is not None:
        loaders.insert(0, jinja2.FileSystemLoader(str(project_dir / "templates")))
    environment = Environment(
        loader=jinja2.ChoiceLoader(loaders),
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update({name: _defined(quote) for name, quote in FILTERS.items()})
    return environment


def _defined(quote: Callable[..., Quoted]) -> Callable[..., Quoted]:
    """`quote`, which says of an undefined value that it is undefined, not that it cannot be quoted."""
    import jinja2

    def check(value: object, *options: object) -> Quoted:
        return quote(str(value) if isinstance(value, jinja2.Undefined) else value, *options)

    return check


def _join(pieces: Iterable[str]) -> Quoted:
    return Quoted("".join(pieces))


def _finalize(value: object) -> object:
    import jinja2

    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number or isinstance(value, (Quoted, jinja2.Undefined)):
        return value
    msg = f"{value!r} would go into the file unquoted; pass it through a filter: {', '.join(sorted(FILTERS))}"
    raise _Refused(msg)


def _raise_not_found(missing: str, environment: jinja2.Environment, *, asked_by: str) -> NoReturn:
    known = [name for name in environment.list_templates() if "/" not in name]
    close = difflib.get_close_matches(missing, known, n=1)
    raise TemplateError(
        f"there is no template {missing!r}",
        where="" if missing == asked_by else asked_by,
        why=f"known templates: {', '.join(known)}",
        fix=f"use {close[0]!r}" if close else f"create templates/{missing} in your project",
    ) from None


def _raise_failed(error: Exception, name: str, values: Mapping[str, object]) -> NoReturn:
    known = ", ".join(sorted(values)) or "none"
    missing = re.search(r"'([^']+)' is undefined", str(error))
    close = difflib.get_close_matches(missing[1], list(values), n=1) if missing else []
    raise TemplateError(
        f"variable {missing[1]!r} is missing" if missing else "the template failed",
        where=_line(error, name),
        why=str(error),
        fix=f"variables that exist: {known}" + (f"; did you mean {close[0]!r}?" if close else ""),
    ) from error


def _line(error: Exception, name: str) -> str:
    """The innermost line of a template in the traceback: jinja2 maps its generated code back to the source."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith((".j2", name))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name


# --- filters: one per language and place ----------------------------------------------------------


def _text(value: object) -> str:
    """A string that UTF-8 can hold and that has no NUL; everything else is refused."""
    if not isinstance(value, str):
        msg = f"{value!r} is {type(value).__name__}, not text"
        raise _Refused(msg)
    if "\0" in value:
        msg = f"{value!r} holds a NUL character"
        raise _Refused(msg)
    try:
        value.encode()
    except UnicodeEncodeError:
        msg = f"{value!r} holds half of a surrogate pair, which UTF-8 cannot"
        raise _Refused(msg) from None
    return value


def _one_line(value: object, of: str) -> str:
    text = _text(value)
    if re.search(r"[\x00-\x1f\x7f\x85\u2028\u2029]", text):
        msg = f"{text!r} holds a line break or a control character, which {of} cannot"
        raise _Refused(msg)
    return text


def _matching(pattern: str, what: str) -> Callable[[object], Quoted]:
    """A filter for words that need no quotes: what does not match is refused."""
    compiled = re.compile(pattern)

    def check(value: object) -> Quoted:
        text = _text(value)
        if compiled.fullmatch(text) is None:
            msg = f"{text!r} is not {what}"
            raise _Refused(msg)
        return Quoted(text)

    return check


def _to_json(value: object, indent: int | None = None, nested: int = 0) -> Quoted:
    """JSON, for devcontainer.json and for the array form of Dockerfile instructions; `nested` is the indentation of its first line."""
    text = _text(
        json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False, default=_not_json)
    )
    return Quoted(text.replace("\n", "\n" + " " * nested))


def _not_json(value: object) -> NoReturn:
    msg = f"{value} is nothing that JSON can hold"  # of an undefined value jinja2 itself says here what is missing
    raise _Refused(msg)


_YAML_NAMED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _to_yaml(value: object) -> Quoted:
    """A YAML 1.1 and 1.2 scalar or flow list. JSON would not do: its surrogate escapes and raw U+2028 read differently."""
    match value:
        case str():
            text = "".join(
                _YAML_NAMED.get(char) or (char if char.isprintable() else f"\\U{ord(char):08x}")
                for char in _text(value)
            )
            return Quoted(f'"{text}"')
        case None | bool() | int():
            return Quoted(json.dumps(value))
        case list() | tuple():
            return Quoted(f"[{', '.join(_to_yaml(item) for item in value)}]")
        case _:
            msg = f"{value!r} is neither text, integer, boolean, null nor a list of them"
            raise _Refused(msg)


def _docker_env(value: object) -> Quoted:
    """The value of ENV or LABEL in double quotes, with backslash, quote and dollar escaped; Docker cannot write a line break there."""
    text = _text(value)
    if "\n" in text or "\r" in text:
        msg = f"{text!r} holds a line break, which ENV and LABEL in a Dockerfile cannot; give it to the container instead"
        raise _Refused(msg)
    return Quoted('"' + re.sub(r'([\\"$])', r"\\\1", text) + '"')


def _systemd_word(value: object) -> Quoted:
    """One word of an Exec line: C escapes, and `%` and `$` doubled (systemd.service, "Command lines")."""
    text = _text(value)
    if re.fullmatch(r"[A-Za-z0-9_/.:=@,+-]+", text):
        return Quoted(text)
    escaped = re.sub(r'([\\"])', r"\\\1", text).replace("%", "%%").replace("$", "$$")
    return Quoted(
        '"' + re.sub(r"[\x01-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", escaped) + '"'
    )


def _ssh_word(value: object) -> Quoted:
    """One argument of ssh_config, in double quotes where needed. Before OpenSSH 8.7 nothing could be escaped in them: refused."""
    text = _one_line(value, "ssh_config")
    if not text or '"' in text or "\\" in text:
        msg = f"{text!r} is empty or holds a double quote or a backslash, which ssh_config cannot"
        raise _Refused(msg)
    return Quoted(text if re.fullmatch(r"[A-Za-z0-9_/.:@%+~-]+", text) else f'"{text}"')


def _ssh_path(value: object, tokens: str = "") -> Quoted:
    """A path of ssh_config, where `%` begins a token and `${` a variable; the latter cannot be escaped. `tokens` are added as they are."""
    text = _one_line(value, "ssh_config")
    if "${" in text:
        msg = f"{text!r} holds '${{', which ssh takes for a variable of the environment"
        raise _Refused(msg)
    return _ssh_word(text.replace("%", "%%") + tokens)


def _b64(value: object) -> Quoted:
    """Text as one line of base64 of its UTF-8 bytes."""
    return Quoted(base64.b64encode(_text(value).encode()).decode("ascii"))


_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
IMAGE_REFERENCE = rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_NAME}(?:/{_NAME})*{_TAG}"
"""A Docker image reference (distribution reference grammar); the digest is SHA-256, the only one
registries serve."""

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
"""Quoting per context; each raises on what its context cannot hold."""


# --- the documents that are no image: each template with the values it knows ----------------------

METADATA_URL = "http://metadata.google.internal/computeMetadata/v1"
USER_DATA_LIMIT_BYTES = 256 * 1024
"""Of one metadata value (Compute Engine: limitations of custom metadata)."""
SOCKET_PATH_BYTES = 103
"""Of a Unix socket's path on macOS; Linux takes 107. ssh ends with an error above it, it does not
go on unshared."""
SOCKET_NAME_BYTES = len("/") + 40 + len(".0123456789abcdef")
"""What ssh puts behind a folder for `%C`: SHA-1 in hexadecimal, and a random suffix while it makes
the socket."""


def boot_unit(*, timeout_s: int = 1800, project_dir: Path | None = None) -> str:
    """The systemd unit that runs /var/lib/provision/boot.sh at boot; `timeout_s` covers a driver download and an image pull."""
    return render("provision-boot.service.j2", {"timeout_s": timeout_s}, project_dir=project_dir)


def user_data(
    boot_files: Mapping[str, str],
    *,
    timeout_s: int = 1800,
    metadata_url: str = METADATA_URL,
    project_dir: Path | None = None,
) -> str:
    """The instance's metadata value `user-data`: units, publication of the host keys, and a seed of the boot scripts.

    `boot_files` maps `boot.sh` and `boot.d/NAME.sh` to their text; they are put into
    /var/lib/provision only where there is no boot.sh yet. Raises `UsageError` above the 256 KiB
    that a metadata value may have.
    """
    text = render(
        "cloud-init.yaml.j2",
        {
            "boot_files": dict(sorted(boot_files.items())),
            "boot_unit": boot_unit(timeout_s=timeout_s, project_dir=project_dir),
            "host_keys_unit": render(
                "provision-host-keys.service.j2",
                {"metadata_url": metadata_url},
                project_dir=project_dir,
            ),
            "host_keys_script": render("publish-host-keys.sh.j2", {}, project_dir=project_dir),
            "place_seed_script": render("place-seed.sh.j2", {}, project_dir=project_dir),
        },
        project_dir=project_dir,
    )
    size = len(text.encode())
    if size > USER_DATA_LIMIT_BYTES:
        largest = max(boot_files, key=lambda name: len(boot_files[name]))
        raise UsageError(
            f"user-data has {size // 1024} KiB, a metadata value may have {USER_DATA_LIMIT_BYTES // 1024}",
            where="cloud-init.yaml.j2",
            why=f"the largest boot script, {largest}, has {len(boot_files[largest].encode()) // 1024} KiB before base64",
            fix="move large files into the image or a bucket",
        )
    return text


def ssh_config(
    hosts: Sequence[Host],
    *,
    known_hosts: str,
    control_dirs: Sequence[str],
    aliases: Mapping[str, Mapping[str, object]] | None = None,
    project_dir: Path | None = None,
) -> str:
    """An ssh_config fragment for `Include`: one block per host, its key pinned in the file `known_hosts`.

    `aliases` says by name what the user's own ssh_config has for a host's address: `hostname`,
    `known_hosts`, `lines`. A host whose key neither the settings nor a VM gave is looked up in the
    user's own files as well. Connections are shared through sockets in the first of `control_dirs`
    whose path is short enough for one; where none is, they are not.
    """
    room = SOCKET_PATH_BYTES - SOCKET_NAME_BYTES
    control_dir = next(
        (
            folder
            for folder in control_dirs
            if len(folder.encode("utf-8", "surrogateescape")) <= room
        ),
        None,
    )
    values = {
        "hosts": hosts,
        "aliases": aliases or {},
        "known_hosts": known_hosts,
        "control_dir": control_dir,
    }
    return render("ssh_config.j2", values, project_dir=project_dir)


def devcontainer(
    *,
    name: str,
    image: str,
    options: Sequence[str],
    volume: str,
    folder: str,
    project_dir: Path | None = None,
) -> str:
    """devcontainer.json for a container of `image` with the `docker run` `options`.

    The editor mounts the Docker volume `volume` at `folder` and works there. Raises `UsageError`
    for a value with `${`, which the editor would replace as a variable.
    """
    variables = [word for word in (*options, image, volume) if "${" in word]
    if variables:
        raise UsageError(
            "the container cannot be described to an editor",
            where="devcontainer.json",
            why="; ".join(f"{word!r} holds '${{'" for word in variables),
        )
    values = {
        "name": name,
        "image": image,
        "run_args": list(options),
        "workspace_mount": f"source={volume},target={folder},type=volume",
        "workspace_folder": folder,
    }
    return render("devcontainer.json.j2", values, project_dir=project_dir)
