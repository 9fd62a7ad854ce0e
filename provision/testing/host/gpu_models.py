"""The GPU models of mock hosts, as /sys, nvidia-smi and the driver report them. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU model: name and memory in MiB as in nvidia-smi, compute capability, PCI device id.

    The multiprocessors are those of `provision/mps/plan/gpus.toml`, which names their sources.
    """

    name: str
    memory_mib: int
    compute_capability: str
    pci_device: str
    multiprocessors: int
    pci_class: str = "0x030200"


MODELS = {
    "nvidia-tesla-t4": Gpu("Tesla T4", 15360, "7.5", "0x1eb8", 40),
    "nvidia-tesla-p4": Gpu("Tesla P4", 7680, "6.1", "0x1bb3", 20),
    "nvidia-tesla-p100": Gpu("Tesla P100-PCIE-16GB", 16384, "6.0", "0x15f8", 56),
    "nvidia-tesla-v100": Gpu("Tesla V100-SXM2-16GB", 16384, "7.0", "0x1db1", 80),
    "nvidia-l4": Gpu("NVIDIA L4", 23034, "8.9", "0x27b8", 58),
    "nvidia-tesla-a100": Gpu("NVIDIA A100-SXM4-40GB", 40960, "8.0", "0x20b0", 108),
    "nvidia-a100-80gb": Gpu("NVIDIA A100-SXM4-80GB", 81920, "8.0", "0x20b2", 108),
    "nvidia-h100-80gb": Gpu("NVIDIA H100 80GB HBM3", 81559, "9.0", "0x2330", 132),
    "nvidia-h100-mega-80gb": Gpu("NVIDIA H100 80GB HBM3", 81559, "9.0", "0x2330", 132),
    "nvidia-h200-141gb": Gpu("NVIDIA H200", 143771, "9.0", "0x2335", 132),
    "nvidia-b200": Gpu("NVIDIA B200", 183359, "10.0", "0x2901", 148),
    "nvidia-rtx-pro-6000": Gpu(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "12.0", "0x2bb5", 188
    ),
}
"""By the names of Compute Engine's accelerator types. `-vws` variants are the same card."""


def gpu_model(accelerator_type: str) -> Gpu:
    """The GPU model of an accelerator type. Raises `ValueError` for one without a mock."""
    found = MODELS.get(accelerator_type.removesuffix("-vws"))
    if found is None:
        raise ValueError(f"no mock of the GPU {accelerator_type!r}; known: {', '.join(MODELS)}")
    return found


DRIVERS = (
    ("default", "580.126.09"),
    ("latest", "590.48.01"),
    ("R535", "535.288.01"),
    ("R570", "570.211.01"),
    ("R580", "580.126.09"),
    ("R590", "590.48.01"),
)
"""Driver labels and versions of the mock's build, after the release notes of milestone 125
(February 2026)."""
OLDER_DRIVERS = ("580.105.08", "590.44.01")
"""Versions of the same build that can be requested by their full number."""
