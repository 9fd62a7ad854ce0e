"""cloud-init as Container-Optimized OS runs it: user-data is applied at every boot.

Stock cloud-init applies write_files, bootcmd and runcmd once per instance, Container-Optimized OS
at each boot (Google: "Create and configure Container-Optimized OS instances").

The host's shell runs the command lines as root. A word that is an absolute path gets the host's
root folder in front: on a mock host only scripts that use "$R" would find it otherwise.
"""

from __future__ import annotations

import base64
import gzip
import re
from typing import Any, Protocol

import yaml

APPLIED_KEYS = frozenset({"write_files", "runcmd", "bootcmd", "users"})
_ROOT_FOLDERS = r"/(?:etc|home|mnt|root|run|tmp|var)(?=/|\Z)"


class BootingHost(Protocol):
    """A host that applies user-data."""

    @property
    def root_path(self) -> str:
        """The folder that stands for `/`."""
        ...

    def put(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file as root."""
        ...

    def run_as_root(
        self, argv: list[str], *, stdin: bytes = b"", timeout_s: float = 900
    ) -> tuple[int, str]:
        """Run a program as root; return its status and output."""
        ...

    def print_console(self, text: str) -> None:
        """Print on the serial console."""
        ...


def apply(text: str, host: BootingHost) -> None:
    """Apply user-data. Errors are printed on the console and do not stop the boot."""
    if not text.startswith("#cloud-config"):
        host.print_console("cloud-init: user-data does not start with #cloud-config: ignored\n")
        return
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        host.print_console(f"cloud-init: Failed loading yaml blob. {error}\n")
        return
    if not isinstance(document, dict):
        return
    for key in document.keys() - APPLIED_KEYS:
        host.print_console(f"cloud-init: the mock does not apply {key!r}\n")
    for command in _entries(document, "bootcmd", host):
        _run(command, host)
    for entry in _entries(document, "write_files", host):
        _write(entry, host)
    for command in _entries(document, "runcmd", host):
        _run(command, host)


def _entries(document: dict[str, Any], key: str, host: BootingHost) -> list[Any]:
    """The list under `key`; anything else is reported on the console and left out."""
    value = document.get(key) or []
    if isinstance(value, list):
        return value
    host.print_console(f"cloud-init: {key}: expected a list, not {type(value).__name__}\n")
    return []


def _write(entry: dict[str, Any], host: BootingHost) -> None:
    try:
        content = decode(
            str(entry.get("content") or ""), str(entry.get("encoding") or "text/plain")
        )
        host.put(str(entry["path"]), content, _mode(entry))
    except (KeyError, ValueError, OSError, RuntimeError) as error:
        host.print_console(f"cloud-init: write_files: {entry.get('path')}: {error}\n")


def _mode(entry: dict[str, Any]) -> str:
    """The permissions in octal. YAML reads a bare 0644 as a number, which is then the mode."""
    permissions = entry.get("permissions") or "0644"
    mode = f"{permissions:o}" if isinstance(permissions, int) else str(permissions)
    if not re.fullmatch(r"0?[0-7]{3,4}", mode):
        raise ValueError(f"permissions {mode!r}")
    return mode


def decode(content: str, encoding: str) -> str:
    """The decoded content of a write_files entry. Raises `ValueError` for an unknown encoding."""
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
    if isinstance(command, list):
        argv = [_below_root(str(word), host) for word in command]
    else:
        argv = ["sh", "-c", _line_below_root(str(command), host)]
    status, output = host.run_as_root(argv)
    host.print_console(output)
    if status != 0:
        host.print_console(f"cloud-init: runcmd {command!r} failed with status {status}\n")


def _below_root(word: str, host: BootingHost) -> str:
    return host.root_path + word if re.match(_ROOT_FOLDERS, word) else word


def _line_below_root(line: str, host: BootingHost) -> str:
    """A shell line in which paths that are words of their own lie below the host's root."""
    return re.sub(
        rf"(^|[\s=<>]){_ROOT_FOLDERS}",
        lambda found: found.group(0).replace("/", f"{host.root_path}/", 1),
        line,
    )
