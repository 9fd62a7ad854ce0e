"""Any host, a VM or one of the settings: provisioned, entered, copied to."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from provision import templating
from provision.app import converging, programs
from provision.app.session import Done, Session, Targets
from provision.errors import UsageError
from provision.hosts import terminal
from provision.hosts.known_hosts import pin_name
from provision.model import Host, Note
from provision.shell import RemotePath, Script, command, script


def vm_provision(session: Session, targets: Targets) -> Done:
    """Converge hosts to the recipe of the GPU host and the user's extra ones."""
    return converging.run(session, targets, lambda target: converging.cos_recipe(session, target), "vm.provision")


def vm_ssh(session: Session, targets: Targets, words: Sequence[str] = ()) -> Done:
    """A shell on the host, or one command; returns its status."""
    target = converging.host(session, targets)
    return programs.finished(enter(session, target, command(*words) if words else None, become=False))


def enter(session: Session, target: Host, body: Script | None, *, become: bool) -> int:
    """An interactive session: a login shell, or `body` on the host's terminal, as root with `become`. The status it ended with."""
    return terminal.interactive(target, body, known_hosts=converging.known_hosts(session), environ=session.environ, become=become)


def vm_ssh_config(session: Session) -> Done:
    """An ssh_config fragment for every host that is reached over SSH."""
    hosts = [target for target in converging.inventory(session) if not target.is_local]
    session.home.mkdir(parents=True, exist_ok=True)
    _pin_settings(session, hosts)
    text = templating.ssh_config(
        hosts, known_hosts=str(session.home / "known_hosts"), control_dir=str(session.home), project_dir=session.project_dir
    )
    return Done({"hosts": [target.name for target in hosts], "ssh_config": text}, text=text.rstrip("\n"))


def _pin_settings(session: Session, hosts: Sequence[Host]) -> None:
    """Host keys of the settings, put where the system's ssh finds them; each replaces what was known under that name."""
    pins = converging.known_hosts(session)
    for target in hosts:
        if target.host_key is not None:
            name = pin_name(target.address, target.port, target.key_alias)
            pins.forget(name)
            pins.pin(name, target.host_key)


_UNPACK = """
mkdir -p "$dir"
tar -xzf - -C "$dir"
"""

# COS brings toolbox, which holds gsutil and sees the host's root below /media/root; elsewhere the CLI's own image does it.
_FROM_BUCKET = """
mkdir -p "$dir"
if command -v toolbox >/dev/null 2>&1; then
    toolbox /google-cloud-sdk/bin/gsutil -m cp -r "$bucket" "/media/root$plain/"
else
    docker run --rm --volume "$dir:$plain" --env HOME=/tmp "$image" gsutil -m cp -r "$bucket" "$plain/"
fi
"""
GSUTIL_IMAGE = "gcr.io/google.com/cloudsdktool/google-cloud-cli:stable"


def vm_copy(session: Session, targets: Targets, src: str, dst: str) -> Done:
    """Copy a file or folder into the folder `dst` of the hosts: from here as one tar stream, from `gs://` on the host itself."""
    if not PurePosixPath(dst).is_absolute():
        raise UsageError(
            "DST must be an absolute folder of the host",
            where=dst,
            why="it does not begin with /",
            fix=f"{session.program_argv0} vm.copy {src} /home/{dst}",
        )
    chosen = converging.hosts(session, targets)
    packed = None if src.startswith("gs://") else pack(Path(src))
    for target in chosen:
        transport = converging.connect(session, target)
        try:
            if packed is None:
                body = script(_FROM_BUCKET, bucket=src, dir=RemotePath(dst), plain=dst, image=GSUTIL_IMAGE)
                programs.checked(transport, body, f"copying {src}")
            else:
                programs.checked(transport, script(_UNPACK, dir=RemotePath(dst)), f"copying {src}", chunks=[packed])
        finally:
            transport.close()
        session.emit(Note(f"copied {src} to {dst}", host=target.name))
    return Done({"copied": [{"host": target.name, "src": src, "dst": dst} for target in chosen]})


def pack(source: Path) -> bytes:
    """A gzipped tar of a file or of what a folder holds, under its own name. Raises `UsageError` when there is none."""
    if not source.exists():
        raise UsageError("there is nothing to copy", where=str(source), why="no such file or folder", fix=f"ls -l {source.parent}")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.add(source, arcname=source.resolve().name)
    return stream.getvalue()
