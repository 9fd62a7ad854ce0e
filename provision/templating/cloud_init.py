"""What Container-Optimized OS runs at every boot: user-data for cloud-init, and the boot unit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provision.core.errors import UsageError
from provision.templating.environment import render

METADATA_URL = "http://metadata.google.internal/computeMetadata/v1"
USER_DATA_LIMIT_BYTES = 256 * 1024
"""Size of one metadata value (Compute Engine: limitations of custom metadata)."""


def boot_unit(*, timeout_s: int = 1800, project_dir: Path | None = None) -> str:
    """The text of the systemd unit that runs /var/lib/provision/boot.sh at boot.

    `timeout_s` covers the download of a driver and of an image.
    """
    return render("provision-boot.service.j2", {"timeout_s": timeout_s}, project_dir=project_dir)


def user_data(
    boot_files: Mapping[str, str],
    *,
    timeout_s: int = 1800,
    project_dir: Path | None = None,
) -> str:
    """The value of the instance's metadata key `user-data`.

    It holds the units, the script that publishes the host keys, and a seed of the boot scripts:
    `boot_files` maps `boot.sh` and `boot.d/NAME.sh` to their texts, which are put into
    /var/lib/provision only where there is no boot.sh yet. Raises `UsageError` above the 256 KiB
    that a metadata value may have.
    """
    keys_unit = "provision-host-keys.service.j2"
    values = {
        "boot_files": dict(sorted(boot_files.items())),
        "boot_unit": boot_unit(timeout_s=timeout_s, project_dir=project_dir),
        "host_keys_unit": render(
            keys_unit, {"metadata_url": METADATA_URL}, project_dir=project_dir
        ),
        "host_keys_script": render("publish-host-keys.sh", {}, project_dir=project_dir),
        "place_seed_script": render("place-seed.sh", {}, project_dir=project_dir),
    }
    text = render("cloud-init.yaml.j2", values, project_dir=project_dir)
    _check_size(text, boot_files)
    return text


def _check_size(text: str, boot_files: Mapping[str, str]) -> None:
    size = len(text.encode())
    if size <= USER_DATA_LIMIT_BYTES:
        return
    largest = max(boot_files, key=lambda name: len(boot_files[name]))
    largest_kib = len(boot_files[largest].encode()) // 1024
    raise UsageError(
        f"user-data has {size // 1024} KiB,"
        f" a metadata value may have {USER_DATA_LIMIT_BYTES // 1024}",
        where="cloud-init.yaml.j2",
        why=f"the largest boot script, {largest}, has {largest_kib} KiB before base64",
        fix="move large files into the image or a bucket",
    )
