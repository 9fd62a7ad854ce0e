"""The utilities of a mock host: links to those of this machine, or to busybox alone."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from provision.testing.host.processes import MockHostError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UTILITIES = tuple(
    """
    [ arch awk base32 base64 basename bash blkid cat chgrp chmod chown cksum clear cmp column comm
    cp csplit cut date dd df diff dirname du echo egrep env expand expr false fgrep file find flock
    fmt fold free gawk getent git grep gunzip gzip head hexdump iconv install ionice ip jq join
    kill less link ln locale logger logname ls lsblk lsof mawk md5sum mkdir mkfifo mktemp more
    mountpoint mv nice nl nohup od openssl paste patch pathchk pgrep pidof pr printenv printf ps
    pwd readlink realpath renice rm rmdir rsync scp sed seq setsid sh sha1sum sha256sum sha512sum
    shred shuf sleep socat sort ssh-keygen split ss stat stdbuf strings stty sum sync sysctl tac
    tail tar taskset tee test time timeout top touch tr true truncate tsort tty uname unexpand uniq
    unlink unxz unzip unzstd uptime vi vim vmstat watch wc which who xargs xz yes zcat zstd
    """.split()  # noqa: SIM905 - two hundred words read best as words
)
"""Utilities of POSIX and those that Container-Optimized OS adds, without python3 and package
managers; without pkill and killall too, which would reach other processes of this machine."""

WRITING_UTILITIES = (
    "base64",
    "cat",
    "cp",
    "dd",
    "gunzip",
    "gzip",
    "install",
    "mv",
    "sort",
    "tar",
    "tee",
)
"""Programs that write files; they fail while the disk is full."""


def link_utilities(folder: Path, shell: str, fallback: Path) -> None:
    """Fill `folder` with links for `shell`: "system", "dash", "bash" or "busybox".

    Utilities that this machine does not have come from `fallback`. Raises `MockHostError` without
    the shell.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    busybox = find_busybox() if shell == "busybox" else None
    for name in UTILITIES:
        target = (
            (busybox if name in _applets(busybox) else None)
            if busybox
            else shutil.which(name, path=SYSTEM_PATH)
        )
        if target is None and (fallback / name).exists():
            target = str(fallback / name)
        if target is not None:
            (folder / name).symlink_to(target)
    if shell in ("dash", "bash"):
        (folder / "sh").unlink()
        (folder / "sh").symlink_to(_which(shell))


def find_busybox() -> str:
    """A busybox that honours PATH: the value of PROVISION_TEST_BUSYBOX, else the machine's.

    Raises `MockHostError` without one, and for one that was built to run its own applets first.
    """
    named = os.environ.get("PROVISION_TEST_BUSYBOX", "")
    busybox = named if named.startswith("/") else _which("busybox")
    if _is_standalone(busybox):
        raise MockHostError(
            f"{busybox} cannot serve a mock host: it was built to run its own applets before it "
            "looks at PATH, so no stand-in would be found (Debian: package busybox-static); "
            "install the package busybox"
        )
    return busybox


@functools.cache
def _is_standalone(busybox: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "mount"
        program.write_text("#!/bin/sh\necho stand-in\n")
        program.chmod(0o755)
        words = [busybox, "sh", "-c", "mount --version"]
        answer = subprocess.run(
            words, env={"PATH": name}, capture_output=True, text=True, check=False, timeout=10
        )
    return answer.stdout.strip() != "stand-in"


@functools.cache
def _applets(busybox: str) -> frozenset[str]:
    listed = subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    return frozenset(listed.split())


def _which(name: str) -> str:
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise MockHostError(f"this system has no {name}")
    return found
