"""Files and directories. A file travels inside the script and is put in place by a rename. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field

from provision.core.errors import ProbeUnreadable
from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import RemotePath, Script, Secret, fields, payload, script

TEXT_LIMIT_BYTES = 64 * 1024
"""Up to here the text itself is read back, so that a diff can be shown; above, its digest."""

# The text itself or its digest, never both: each program started is a millisecond on the host.
_PROBE = """
test -f "$path" || exit 0
found=$(stat -c '%a %s' "$path")
echo "mode=${found% *}"
if test -n "$limit" && test "${found#* }" -le "$limit" && test ! -L "$path"; then
    echo "content="
    base64 <"$path"
else
    digest=$(sha256sum <"$path")
    echo "sha256=${digest%% *}"
fi
"""

# Written beside the target and renamed, so that a reader never sees half a file and a full disk
# leaves the old one. Until its permissions are set nobody else can read it, and `mv` is kept from
# moving it into a directory. What a run that was killed left there goes: its name ends with the
# number of a process that is no more.
_ENSURE = """
if test -d "$path"; then
    echo "the path is a directory, a file is wanted"
    exit 1
fi
dir=${path%/*}
test -d "$dir/" || mkdir -p "$dir"
umask 077
new="$path.provision.$$"
trap 'rm -f "$new"' EXIT
trap 'exit 143' TERM HUP INT
for old in "$path".provision.[0-9]*; do
    test ! -e "$old" || kill -0 "${old##*.}" 2>/dev/null || rm -f "$old"
done
printf '%s' "$data" | base64 -d >"$new"
test "$(wc -c <"$new")" -eq "$size"
chmod "$mode" "$new"
mv -f "$new" "$path"
trap - EXIT
"""


def remember_disk_full(output: str) -> Diagnosis | None:
    """The meaning of ENOSPC in what a command printed: libc writes it with a capital, Docker (Go) without."""
    if "no space left on device" not in output.lower():
        return None
    return Diagnosis(
        "the disk of the host is full",
        "docker system prune --all --force   (on the host), or a larger disk_gb",
    )


@dataclass(frozen=True, kw_only=True)
class File(Resource):
    """A regular file with this content and these permissions (`mode` in octal digits, as in "0644").

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
    def _readable(self) -> bool:
        return (
            isinstance(self.content, str) and not self.secret and len(self.data) <= TEXT_LIMIT_BYTES
        )

    def probe(self) -> Script:
        """Permissions, and the text where a diff could show it, else its digest."""
        return script(
            _PROBE,
            path=RemotePath(self.path),
            limit=str(TEXT_LIMIT_BYTES) if self._readable else "",
        )

    def read(self, text: str) -> State | None:
        """`{"mode", "content"}` for text, `{"mode", "sha256"}` otherwise."""
        if not text.strip():
            return None
        head, marked, encoded = text.partition("content=\n")
        found = fields(head)
        mode = found["mode"].zfill(4)
        if not marked:
            digest = found["sha256"]
            return (
                {"mode": mode, "content": f"<not shown: sha256 {digest}>"}
                if self._readable
                else {"mode": mode, "sha256": digest}
            )
        try:
            data = base64.b64decode("".join(encoded.split()), validate=True)
        except binascii.Error as error:
            raise ProbeUnreadable(
                "the file did not come back whole", where=self.path, why=str(error)
            ) from error
        try:
            content = data.decode("utf-8")
        except UnicodeDecodeError:
            content = f"<not text: sha256 {hashlib.sha256(data).hexdigest()}>"
        return {"mode": mode, "content": content}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """The content itself, or its digest."""
        mode = self.mode.zfill(4)
        if self._readable and isinstance(self.content, str):
            return {"mode": mode, "content": self.content}
        return {"mode": mode, "sha256": hashlib.sha256(self.data).hexdigest()}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Write beside the target, check the size, rename."""
        data = payload(self.data)
        return script(
            _ENSURE,
            path=RemotePath(self.path),
            data=Secret(data) if self.secret else data,
            size=len(self.data),
            mode=self.mode,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """A directory in the way, a full disk."""
        if "is a directory, a file is wanted" in output:
            return Diagnosis(
                "a directory is where the file should be",
                f"rmdir {self.path}   (on the host), if nothing in it is needed",
            )
        return remember_disk_full(output)


@dataclass(frozen=True, kw_only=True)
class Directory(Resource):
    """A directory with these permissions; its parents are made where missing."""

    path: str
    mode: str = "0755"

    def probe(self) -> Script:
        """Its permissions."""
        return script('test ! -d "$path" || stat -L -c %a "$path"', path=RemotePath(self.path))

    def read(self, text: str) -> State | None:
        """`{"mode"}`."""
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
