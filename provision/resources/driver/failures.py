"""Failure texts of the driver's installation and what each means. Pure.

Source: the public cos-gpu-installer repository and its users' reports.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from provision.core.resource import Diagnosis


class KnownFailure(NamedTuple):
    """A pattern of the installer's output, its cause and its fix."""

    pattern: str
    cause: str
    fix: str


FAILURES = (
    KnownFailure(
        r"a loaded module stays until the next reboot",
        "another driver version is loaded; the new one needs a reboot",
        "invoke vm.ssh -- sudo reboot, then invoke vm.provision",
    ),
    KnownFailure(
        r"no NVIDIA driver is loaded",
        "this host has no NVIDIA driver (driver: present installs none)",
        "install the driver of your distribution, then run again",
    ),
    KnownFailure(
        r"(?i)lock.* is locked",
        "another installer kept running on the host",
        "wait for it to end, then run the same command again",
    ),
    KnownFailure(
        r"(?i)driver.*status:? 404|version .* not found",
        "the wanted driver does not exist for this build of the OS",
        "cos-extensions list   (on the host) names those that do",
    ),
    KnownFailure(
        r"(?i)failed to get GPU type information",
        "the installer finds no GPU on the VM",
        "invoke vm.show   (which GPU the VM was made with)",
    ),
    KnownFailure(
        r"(?i)failed to download",
        "the driver could not be downloaded: no route out, no storage scope, or no such build",
        "curl -sI https://storage.googleapis.com   (on the host) shows whether it has a route out",
    ),
    KnownFailure(
        r"Client\.Timeout|exit status 125",
        "the installer image could not be pulled: no route out, or Docker was not ready",
        "give the VM an external IP, Cloud NAT or Private Google Access",
    ),
    KnownFailure(
        r"(?i)failed to load GPU drivers|insmod",
        "the kernel refused the modules: wrong flavour, Secure Boot, or an old version is loaded",
        "sudo dmesg | tail   (on the host), then reboot it",
    ),
    KnownFailure(
        r"(?i)failed to verify.*exit status 255",
        "nvidia-smi failed after the installation: a cached driver of another version,"
        " or the GPU is lost",
        "sudo rm -rf /var/lib/nvidia/.cache && sudo reboot   (on the host)",
    ),
    KnownFailure(
        r"(?i)not supported on dev images",
        "GPU drivers are not offered on dev images",
        "set image to a family such as cos-125-lts",
    ),
    KnownFailure(
        r"cos-extensions: (command )?not found|not found: cos-extensions",
        "this host is not Container-Optimized OS with GPU support (milestone 85 or newer)",
        "set driver: present for a host with a driver of its own",
    ),
)


def diagnose_installation(output: str) -> Diagnosis | None:
    """The meaning of the first known failure text in what the installation printed."""
    for pattern, cause, fix in FAILURES:
        if re.search(pattern, output):
            return Diagnosis(cause, fix)
    return None
