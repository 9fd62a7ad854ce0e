"""The command line of the lab."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lab.base_image import base_image
from lab.host import DEFAULT_FOLDER, Lab
from lab.image import Gpu
from lab.programs import find_programs
from provision.core.errors import ProvisionError

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "lab"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ProvisionError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab",
        description="A host laid out as Container-Optimized OS, on this machine. Needs root.",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=DEFAULT_FOLDER,
        metavar="DIR",
        help="the lab's folder (default: %(default)s)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start it and print its address and login")
    _add_up_options(up)
    commands.add_parser("down", help="end it and remove its folder")
    commands.add_parser("status", help="print its address and login; status 1 when it does not run")
    commands.add_parser("reboot", help="reboot it")
    commands.add_parser("shell", help="a shell of root in it")
    run = commands.add_parser("exec", help="run a program in it as root")
    run.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def _add_up_options(up: argparse.ArgumentParser) -> None:
    up.add_argument(
        "--authorized-key",
        metavar="FILE",
        type=Path,
        help="a public key that may log in, beside the lab's own",
    )
    up.add_argument(
        "--gpu",
        metavar="TYPE",
        help="accelerator type it shows, or `real` (default: $PROVISION_LAB_GPU, else nvidia-l4)",
    )
    up.add_argument(
        "--gpu-count", type=int, metavar="N", help="how many of them; 0 = none (default: 1)"
    )
    up.add_argument(
        "--user-data", metavar="FILE", type=Path, help="cloud-config applied at every boot"
    )
    kinds = ("auto", "real", "standin", "none")
    up.add_argument(
        "--beam",
        default="auto",
        choices=kinds,
        help="apache-beam in the local base image (default: %(default)s); none = no image",
    )


def _run(options: argparse.Namespace) -> int:
    lab = Lab(options.state)
    match options.command:
        case "up":
            environment = {"PROVISION_LAB_GPU": options.gpu} if options.gpu else os.environ
            lab.gpu = Gpu.from_environment(environment)
            if options.gpu_count is not None:
                lab.gpu = replace(lab.gpu, count=options.gpu_count)
            lab.authorized_key = (
                options.authorized_key.read_text() if options.authorized_key else None
            )
            lab.user_data = options.user_data.read_text() if options.user_data else ""
            lab.start()
            if options.beam != "none":
                lab.load_base_image(
                    base_image(CACHE, find_programs(lab.engine).busybox, beam=options.beam)
                )
        case "down":
            lab.remove()
            return 0
        case "reboot":
            before = lab.boot_id()
            lab.exec_inside("reboot", check=False)  # the reboot may end this command too
            lab.wait_for_boot(after=before)
        case "shell":
            return lab.shell()
        case "exec":
            done = lab.exec_inside(*options.words, check=False)
            sys.stdout.write(done.stdout)
            sys.stderr.write(done.stderr)
            return done.returncode
    running = lab.init_pid() is not None
    print(
        json.dumps(
            {"running": running, "hosts": {"lab": asdict(lab.host)} if running else {}}, indent=2
        )
    )
    return 0 if running else 1


if __name__ == "__main__":
    sys.exit(main())
