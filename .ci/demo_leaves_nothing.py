"""Run a warm `make demo` in an empty home; exit 1 if it leaves a process or a file.

Files below .venv and the state folder are allowed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = f"LEFT_BEHIND_BY_DEMO={uuid.uuid4()}"
"""Every process that the demo starts inherits it, wherever it goes and whoever its parent
becomes."""
GRACE_S = 3.0


def files(top: Path, *, but: Iterable[str] = ()) -> Iterator[str]:
    """Every file and folder below `top`, except what stands below the folders named in `but`."""
    skipped = {top / name for name in but}
    for folder, folders, names in os.walk(top):
        here = Path(folder)
        folders[:] = [name for name in folders if here / name not in skipped]
        yield from (str((here / name).relative_to(top)) for name in (*folders, *names))


def marked() -> list[str]:
    """Processes that carry the mark, as "pid command"."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (process / "environ").read_bytes().split(b"\0"):
                command_line = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"{process.name} {command_line.decode(errors='replace')}")
        except OSError:  # it has ended
            continue
    return found


def main() -> int:
    """Run the demo and print what it left."""
    before = set(files(ROOT, but=[".venv", ".git"]))
    with tempfile.TemporaryDirectory() as scratch:
        home, temporary = Path(scratch, "home"), Path(scratch, "tmp")
        for folder, mode in ((Path(scratch), 0o755), (home, 0o700), (temporary, 0o1777)):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDG_", "PROVISION_", "INVOKE_"))
        }
        name, value = MARK.split("=")
        start = time.monotonic()
        done = subprocess.run(
            ["make", "demo"],
            cwd=ROOT,
            env={**kept, "HOME": str(home), "TMPDIR": str(temporary), name: value},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - start
        deadline = time.monotonic() + GRACE_S
        while (processes := marked()) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [
            *(f"process {text}" for text in processes),
            *(
                f"file ~/{text}"
                for text in files(home, but=[".local/state/provision"])
                if text not in {".local", ".local/state"}
            ),
            *(f"file $TMPDIR/{text}" for text in files(temporary)),
            *(f"file {text}" for text in sorted(set(files(ROOT, but=[".venv", ".git"])) - before)),
        ]
    if done.returncode:
        sys.stdout.write(f"{done.stdout}{done.stderr}make demo ended with {done.returncode}\n")
    sys.stdout.writelines(f"left behind: {line}\n" for line in left)
    sys.stdout.write(f"make demo, warm: {seconds:.1f} s\n")
    return 1 if done.returncode or left else 0


if __name__ == "__main__":
    sys.exit(main())
