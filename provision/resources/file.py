"""Files and directories. A file travels inside the script and is put in place by a rename. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from provision.core.errors import ProbeUnreadable
from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import RemotePath, Script, Secret, fields, payload, script

HERE = Path(__file__).parent
TEXT_LIMIT_BYTES = 64 * 1024
"""The text of files up to this size is read back, so that a diff can be shown; of larger ones the
digest."""
STAGE_FILE = "resources/stage_file.sh"


def diagnose_full_disk(output: str) -> Diagnosis | None:
    """The meaning of ENOSPC in what a command printed; None where it printed something else.

    libc writes the text with a capital letter, Docker (Go) without.
    """
    if "no space left on device" not in output.lower():
        return None
    return Diagnosis(
        "the disk of the host is full",
        "docker system prune --all --force   (on the host), or a larger disk_gb",
    )


def decode_file(encoded: str, *, where: str) -> bytes:
    """The bytes of base64 text that a probe printed. Raises `ProbeUnreadable` for half of it."""
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except binascii.Error as error:
        raise ProbeUnreadable(
            "the file did not come back whole", where=where, why=str(error)
        ) from error


@dataclass(frozen=True, kw_only=True)
class File(Resource):
    """A regular file with this content and these permissions (`mode` in octal digits, as "0644").

    The content of a `secret` file is never read back: its SHA-256 is compared instead.
    """

    path: str
    content: str | bytes = field(repr=False)
    mode: str = "0644"
    secret: bool = False

    @property
    def data(self) -> bytes:
        """The content as bytes (UTF-8)."""
        return self.content if isinstance(self.content, bytes) else self.content.encode("utf-8")

    @property
    def _text(self) -> str | None:
        """The content where it is read back as text; None where its digest is compared."""
        if isinstance(self.content, bytes) or self.secret or len(self.data) > TEXT_LIMIT_BYTES:
            return None
        return self.content

    def probe(self) -> Script:
        """Print the permissions, and the text where a diff could show it, else its digest."""
        limit = "" if self._text is None else str(TEXT_LIMIT_BYTES)
        return script(HERE / "file_probe.sh", path=RemotePath(self.path), limit=limit)

    def read(self, text: str) -> State | None:
        """`{"mode", "content"}` for text, `{"mode", "sha256"}` otherwise; None without a file.

        Raises `ProbeUnreadable` when half of the text is missing.
        """
        if not text.strip():
            return None
        head, marked, encoded = text.partition("content=\n")
        found = fields(head)
        mode = found["mode"].zfill(4)
        if marked:
            return {"mode": mode, "content": self._read_content(encoded)}
        digest = found["sha256"]
        if self._text is None:
            return {"mode": mode, "sha256": digest}
        return {"mode": mode, "content": f"<not shown: sha256 {digest}>"}

    def _read_content(self, encoded: str) -> str:
        data = decode_file(encoded, where=self.path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return f"<not text: sha256 {hashlib.sha256(data).hexdigest()}>"

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """The permissions, and the content itself or its digest."""
        mode = self.mode.zfill(4)
        if self._text is not None:
            return {"mode": mode, "content": self._text}
        return {"mode": mode, "sha256": hashlib.sha256(self.data).hexdigest()}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Write beside the path, check the size, rename."""
        data = payload(self.data)
        return script(
            HERE / "file_write.sh",
            uses=[STAGE_FILE],
            path=RemotePath(self.path),
            data=Secret(data) if self.secret else data,
            size=len(self.data),
            mode=self.mode,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """A directory in the way, or a full disk."""
        if "is a directory, a file is wanted" in output:
            return Diagnosis(
                "a directory is where the file should be",
                f"rmdir {self.path}   (on the host), if nothing in it is needed",
            )
        return diagnose_full_disk(output)


@dataclass(frozen=True, kw_only=True)
class Directory(Resource):
    """A directory with these permissions; its parents are made where missing."""

    path: str
    mode: str = "0755"

    def probe(self) -> Script:
        """Print its permissions."""
        return script('test ! -d "$path" || stat -L -c %a "$path"', path=RemotePath(self.path))

    def read(self, text: str) -> State | None:
        """`{"mode"}`; None without it. Raises `ProbeUnreadable` for anything but octal digits."""
        if not text.strip():
            return None
        if not text.strip().isdigit():
            raise ProbeUnreadable(
                "the permissions of a directory are not octal digits", where=self.path, why=text
            )
        return {"mode": text.strip().zfill(4)}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"mode"}`."""
        return {"mode": self.mode.zfill(4)}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Make it and set its permissions."""
        return script(
            'mkdir -p "$path"\nchmod "$mode" "$path"', path=RemotePath(self.path), mode=self.mode
        )
