"""The settings as one frozen, typed model. What the keys mean is said here once; `docs` and error messages read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from provision.core import model
from provision.core.errors import SettingsError
from provision.settings import kinds
from provision.settings.levels import Level, Merged, merge
from provision.settings.problems import settings_error

GPU_DISK_MIN_GB = 50
"""Smallest boot disk with a GPU (Dataflow, "Best practices for GPUs": increase the boot disk to 50
GB or more)."""
DEFAULT_ZONES = ("us-central1-a", "us-central1-b", "us-central1-c")


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_unset(cls, data: Any) -> Any:
        """A key without a value (`worker:` with every line under it commented out) counts as not written."""
        return (
            {key: value for key, value in data.items() if value is not None}
            if isinstance(data, dict)
            else data
        )


def _impossible(key: str, reason: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("impossible", "{reason}", {"key": key, "reason": reason, "fix": fix})


class WorkerSettings(_Model):
    """The worker's image and its container."""

    image: kinds.ImageRef | None = None
    """An existing image to pull instead of building one."""
    base: Literal["beam", "pytorch", "tensorflow", "cuda"] = "beam"
    """Which Dockerfile is rendered."""
    base_image: kinds.ImageRef | None = None
    """The image that the Dockerfile starts from, instead of the family's own."""
    python: kinds.PythonVersion = "3.11"
    """Minor version of Python in the image."""
    beam: kinds.BeamVersion = "2.77.0"
    """Version of the Apache Beam SDK in the image."""
    requirements: kinds.Requirements = ()
    """pip requirements installed into the image."""
    apt: kinds.AptPackages = ()
    """Debian packages installed into the image."""
    env: dict[kinds.EnvName, kinds.EnvValue] = {}
    """Variables of the container."""
    privileged: bool = False
    """Start the container with `--privileged` instead of single `--device` flags."""
    shm_size: kinds.ShmSize = "1g"
    """Size of the container's /dev/shm."""
    processes: kinds.Processes | None = None
    """SDK processes that share the GPU; empty = one per vCPU, as Dataflow does."""
    volumes: kinds.Volumes = ()
    """More volumes, each SRC:DST or SRC:DST:ro."""
    name: kinds.ContainerName = "worker"
    """Name of the container."""
    context: kinds.LocalPath | None = None
    """Folder sent as the build context, relative to the project; empty = the rendered files
    alone."""

    @model_validator(mode="after")
    def _targets_differ(self) -> Self:
        targets = [volume.split(":")[1].rstrip("/") for volume in self.volumes]
        twice = sorted({target for target in targets if targets.count(target) > 1})
        if twice:
            raise _impossible(
                "volumes",
                f"two of them have the target {twice[0]}",
                "give each volume a target of its own",
            )
        return self


class MpsSettings(_Model):
    """NVIDIA's Multi-Process Service."""

    pipe_dir: kinds.PipeDir = "/run/mps/pipe"
    """`CUDA_MPS_PIPE_DIRECTORY` on the host and in the container."""
    log_dir: kinds.AbsolutePath = "/run/mps/log"
    """`CUDA_MPS_LOG_DIRECTORY` on the host and in the container."""
    thread_percentage: kinds.Percentage | None = None
    """Default share of the GPU's threads that one client may use; empty = all."""
    memory_limit: kinds.MemoryLimit | None = None
    """GPU memory that one client may allocate, such as 4G or 512M; empty = all."""
    topology: Literal["container", "containers"] = "container"
    """Where clients run: side by side in one container, or each in a container of its own beside
    the daemon's, as on Dataflow."""
    cpus: kinds.Cpus | None = None
    """CPUs that the control daemon and its server are pinned to, such as 0-1; empty = all of the
    container."""
    gpu: kinds.GpuChoice | None = None
    """The GPU that is shared where the host has several: its index or its UUID; empty = all of
    them."""
    exclusive: bool = False
    """Set the compute mode EXCLUSIVE_PROCESS meanwhile: a process that misses the daemon fails
    instead of running without MPS."""


class DataflowSettings(_Model):
    """The Dataflow job that the worker stands for."""

    machine_type: kinds.MachineType | None = None
    """Machine type of the job's workers; empty = the VM's."""
    region: kinds.Region | None = None
    """Region of the job; empty = that of the VM's zone."""


class HostSettings(_Model):
    """A host that exists already."""

    address: kinds.Address
    """What ssh connects to, an alias of ssh_config included; or `local` for this very machine."""
    port: kinds.Port | None = None
    """TCP port of its SSH server; empty = as ssh_config says, else 22."""
    user: kinds.User | None = None
    """Who to log in as; empty = as ssh_config says."""
    identity: kinds.LocalPath | None = None
    """Private key file; empty = as ssh_config and the agent say."""
    host_key: kinds.HostKey | None = None
    """The host's public key; empty = it must be in a known-hosts file."""
    become: Literal["sudo", "none"] = "sudo"
    """How root is reached: one `sudo -n` for the whole script, or not at all."""
    driver: Literal["cos", "present"] | None = None
    """Who installs the GPU driver: COS's installer, or nobody; empty = by what /etc/os-release
    says."""
    driver_dir: kinds.AbsolutePath | None = None
    """With `driver: present`, the folder that holds or collects the driver's bin/ and lib64/."""

    @model_validator(mode="after")
    def _driver_dir_needs_present(self) -> Self:
        if self.driver_dir is not None and self.driver == "cos":
            raise _impossible(
                "driver_dir",
                "COS's installer decides where its driver lies",
                "remove driver_dir, or set driver to present",
            )
        return self

    def host(self, name: str) -> model.Host:
        """The record that the program works with."""
        return model.Host(name=name, **self.model_dump())


Check: TypeAlias = Callable[["Settings"], None]
"""A check that needs more than the settings (the catalogue of machines); raises SettingsError whose
`where` is the key."""


class Settings(_Model):
    """Everything that may be set, under the key `provision`."""

    cloud: Literal["gce", "mock"] = "mock"
    """Where VMs are made; empty = gce when `project` is set, else the embedded mock."""
    project: kinds.Project | None = None
    """Google Cloud project that pays."""
    zones: kinds.Places = DEFAULT_ZONES
    """Where to try, in this order: zones, regions (all their zones) or `everywhere`; zones without
    the GPU are passed over."""
    name: kinds.Name = "dev"
    """Name of the VM, and the host that tasks act on unless told otherwise."""
    machine_type: kinds.MachineType | None = None
    """Machine type; empty = that of the Dataflow job, or else the smallest comfortable one for the
    GPU."""
    gpu: kinds.OptionalGpu = "nvidia-l4"
    """Accelerator type; none = a VM without a GPU."""
    gpu_count: kinds.GpuCount = 1
    """How many of them."""
    disk_gb: kinds.DiskGb = 200
    """Size of the boot disk in GB."""
    image: kinds.CosImage = "cos-125-lts"
    """Family or image of the project cos-cloud."""
    ttl: kinds.Ttl = "8h"
    """Time to live: the cloud itself stops the VM after it; "none" = never."""
    prices: kinds.LocalPath | None = None
    """A price list of your own, in the form of provision/cloud/market/data/prices.json; empty = the
    packaged one."""
    ssh: Literal["direct", "iap"] = "direct"
    """The way to the VM: its external address, or a tunnel of Identity-Aware Proxy through
    `gcloud`; it has no such address then."""
    ttl_action: Literal["stop", "delete"] = "stop"
    """What the cloud does at the end of the time to live, and when it takes a Spot VM back."""
    idle_stop: kinds.Idle = "none"
    """A VM made here powers itself off when nobody used it for so long (GPU, terminals, runs);
    "none" = never."""
    idle_delete: kinds.Idle = "none"
    """Written on the VM as a label: `vm.gc` deletes it, after asking, when it has been stopped for
    so long; "none" = never."""
    provisioning: Literal["standard", "spot", "flex-start"] = "standard"
    """How the VM is bought: at any time, cheaper until the cloud takes it back, or once capacity is
    found, for at most seven days."""
    capacity_wait: kinds.Wait | None = None
    """With `provisioning: flex-start`, how long each zone may look for capacity; empty = 10m."""
    reservation: kinds.Name | None = None
    """Reservation that the VM's capacity comes from; empty = any that fits, as Compute Engine does
    by itself."""
    os_login: kinds.OsLogin = "auto"
    """Log in to VMs through OS Login (on), with a key in their metadata (off), or as the project's
    metadata says (auto)."""
    driver: kinds.Driver = "default"
    """Version of the GPU driver."""
    registries: kinds.Registries = ()
    """Registries to log in to on the host, beside those of the images."""
    recipes: kinds.Recipes = ()
    """Recipes of your own, each "module:function", run after the built-in ones."""
    worker: WorkerSettings = WorkerSettings()
    mps: MpsSettings = MpsSettings()
    dataflow: DataflowSettings = DataflowSettings()
    hosts: dict[kinds.HostName, HostSettings] = {}
    """Hosts that exist already, by name."""

    @classmethod
    def from_levels(cls, levels: Iterable[Level], check: Check | None = None) -> Self:
        """The settings that `levels` say, the weakest first. Raises SettingsError naming key, value, place and what is allowed."""
        merged = merge(levels)
        try:
            settings = cls.model_validate(dict(merged.data))
        except ValidationError as found:
            raise settings_error(found.errors(include_url=False), cls, merged) from None
        if check is not None:
            _run(check, settings, merged)
        return settings

    @property
    def idle_stop_s(self) -> int | None:
        """Seconds of no use after which a VM powers itself off; None = never."""
        return kinds.idle_seconds(self.idle_stop)

    @property
    def idle_delete_s(self) -> int | None:
        """Seconds after which a VM that is stopped is one to delete; None = never."""
        return kinds.idle_seconds(self.idle_delete)

    @property
    def ttl_s(self) -> int | None:
        """The time to live in seconds; None = never stopped."""
        return kinds.ttl_seconds(self.ttl)

    @property
    def capacity_wait_s(self) -> int | None:
        """How long a zone may look for capacity, in seconds; None where nothing is said."""
        return None if self.capacity_wait is None else kinds.wait_seconds(self.capacity_wait)

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, data: Any) -> Any:
        """What follows from other keys when it is not written: the cloud from the project, no GPUs from `gpu: none`."""
        if not isinstance(data, dict):
            return data
        cloud = "gce" if data.get("project") else "mock"
        count = {"gpu_count": 0} if data.get("gpu") == "none" else {}
        return (
            {"cloud": cloud}
            | count
            | {key: value for key, value in data.items() if value is not None}
        )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.cloud == "gce" and self.project is None:
            raise _impossible(
                "cloud",
                "Compute Engine needs a project that pays",
                "set provision.project, or cloud to mock",
            )
        if self.gpu is not None and self.disk_gb < GPU_DISK_MIN_GB:
            raise _impossible(
                "disk_gb",
                f"under {GPU_DISK_MIN_GB} GB the disk fills while the worker image is pulled: GPU images are large",
                f"set provision.disk_gb to {GPU_DISK_MIN_GB} or more",
            )
        if self.mps.gpu is not None and "CUDA_VISIBLE_DEVICES" in self.worker.env:
            raise _impossible(
                "mps.gpu",
                "the daemon chooses the GPU, and a client that is told CUDA_VISIBLE_DEVICES as well finds none",
                "remove CUDA_VISIBLE_DEVICES from provision.worker.env",
            )
        if not self.zones:
            raise _impossible(
                "zones",
                "without a zone there is nowhere to put the VM",
                "name at least one zone, such as us-central1-a",
            )
        return self


def _run(check: Check, settings: Settings, merged: Merged) -> None:
    try:
        check(settings)
    except SettingsError as found:
        path = tuple(found.where.split("."))
        known = path[0] in Settings.model_fields
        value = reduce(getattr, path, settings) if known else None
        what = f"provision.{found.where} is {value!r}: {found.what}" if known else found.what
        raise SettingsError(
            what, where=merged.place(path) or "defaults", why=found.why, fix=found.fix
        ) from None
