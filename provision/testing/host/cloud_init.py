"""What cloud-init does with user-data on Container-Optimized OS: write_files, bootcmd and runcmd at every boot.

Stock cloud-init applies them once per instance; Container-Optimized OS at each boot (Google:
"Create and configure Container-Optimized OS instances"). Its command lines are run by the host's
shell as root; a word that names a path is led below the host's root, since on a mock only scripts
that use "$R" find it by themselves.
"""

from __future__ import annotations

import base64
import gzip
import re
from typing import Any, Protocol

from provision.testing.yaml_subset import YamlError, parse

KNOWN = frozenset({"write_files", "runcmd", "bootcmd", "users"})


class BootingHost(Protocol):
    """A host that applies user-data."""

    @property
    def root_path(self) -> str:
        """The folder that stands for `/`."""
        ...

    def put(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file, as root."""
        ...

    def run_as_root(
        self, argv: list[str], *, stdin: bytes = b"", timeout_s: float = 900
    ) -> tuple[int, str]:
        """Run a program, as root."""
        ...

    def print_console(self, text: str) -> None:
        """Print on the serial console."""
        ...


def apply(text: str, host: BootingHost) -> None:
    """Apply user-data. What fails is printed on the console and the boot goes on, as on the real thing."""
    if not text.startswith("#cloud-config"):
        host.print_console("cloud-init: user-data does not start with #cloud-config: ignored\n")
        return
    try:
        document = parse(text)
    except YamlError as error:
        host.print_console(f"cloud-init: Failed loading yaml blob. {error}\n")
        return
    if not isinstance(document, dict):
        return
    for key in document.keys() - KNOWN:
        host.print_console(f"cloud-init: the mock does not apply {key!r}\n")
    for command in document.get("bootcmd") or []:
        _run(command, host)
    for entry in document.get("write_files") or []:
        _write(entry, host)
    for command in document.get("runcmd") or []:
        _run(command, host)


def _write(entry: dict[str, Any], host: BootingHost) -> None:
    try:
        content = decode(
            str(entry.get("content") or ""), str(entry.get("encoding") or "text/plain")
        )
        host.put(str(entry["path"]), content, _mode(entry))
    except (KeyError, ValueError, OSError, RuntimeError) as error:
        host.print_console(f"cloud-init: write_files: {entry.get('path')}: {error}\n")


def _mode(entry: dict[str, Any]) -> str:
    mode = str(entry.get("permissions") or "0644")
    if not re.fullmatch(r"0?[0-7]{3,4}", mode):
        raise ValueError(f"permissions {mode!r}")
    return mode


def decode(content: str, encoding: str) -> str:
    """The content of a write_files entry in one of cloud-init's encodings."""
    match encoding.lower():
        case "text/plain":
            return content
        case "b64" | "base64":
            return base64.b64decode(content).decode("utf-8", "surrogateescape")
        case "gz+b64" | "gz+base64" | "gzip+b64" | "gzip+base64":
            return gzip.decompress(base64.b64decode(content)).decode("utf-8", "surrogateescape")
        case _:
            raise ValueError(f"unknown encoding {encoding!r}")


def _run(command: object, host: BootingHost) -> None:
    words = command if isinstance(command, list) else None
    argv = (
        ["sh", "-c", _led_line(str(command), host)]
        if words is None
        else [_led(str(word), host) for word in words]
    )
    status, output = host.run_as_root(argv)
    host.print_console(output)
    if status != 0:
        host.print_console(f"cloud-init: runcmd {command!r} failed with status {status}\n")


_TOP = r"/(?:etc|home|mnt|root|run|tmp|var)(?=/|\Z)"


def _led(word: str, host: BootingHost) -> str:
    return host.root_path + word if re.match(_TOP, word) else word


def _led_line(line: str, host: BootingHost) -> str:
    """Paths that stand as words of their own in a shell line."""
    return re.sub(
        rf"(^|[\s=<>]){_TOP}",
        lambda found: found.group(0).replace("/", f"{host.root_path}/", 1),
        line,
    )
