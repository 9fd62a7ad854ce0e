"""The settings as one frozen, typed model. Each key is documented here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from provision.core import model
from provision.core.errors import SettingsError
from provision.settings import validators
from provision.settings import value_types as types
from provision.settings.levels import Level, Merged, merge
from provision.settings.validation_errors import settings_error

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
        """Drop keys without a value, such as `worker:` with every line below it commented out."""
        return (
            {key: value for key, value in data.items() if value is not None}
            if isinstance(data, dict)
            else data
        )


def _impossible(key: str, reason: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("impossible", "{reason}", {"key": key, "reason": reason, "fix": fix})


class WorkerSettings(_Model):
    """The worker's image and its container."""

    image: types.ImageRef | None = None
    """An existing image to pull instead of building one."""
    base: Literal["beam", "pytorch", "tensorflow", "cuda"] = "beam"
    """Which Dockerfile is rendered."""
    base_image: types.ImageRef | None = None
    """The image that the Dockerfile starts from, instead of the family's own."""
    python: types.PythonVersion = "3.11"
    """Minor version of Python in the image."""
    beam: types.BeamVersion = "2.77.0"
    """Version of the Apache Beam SDK in the image."""
    requirements: types.Requirements = ()
    """pip requirements installed into the image."""
    apt: types.AptPackages = ()
    """Debian packages installed into the image."""
    env: dict[types.EnvName, types.EnvValue] = {}
    """Variables of the container."""
    privileged: bool = False
    """Start the container with `--privileged` instead of single `--device` flags."""
    shm_size: types.ShmSize = "1g"
    """Size of the container's /dev/shm."""
    processes: types.Processes | None = None
    """SDK processes that share the GPU; empty = one per vCPU, as Dataflow does."""
    volumes: types.Volumes = ()
    """More volumes, each SRC:DST or SRC:DST:ro."""
    name: types.ContainerName = "worker"
    """Name of the container."""
    context: types.LocalPath | None = None
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

    pipe_dir: types.PipeDir = "/run/mps/pipe"
    """`CUDA_MPS_PIPE_DIRECTORY` on the host and in the container."""
    log_dir: types.AbsolutePath = "/run/mps/log"
    """`CUDA_MPS_LOG_DIRECTORY` on the host and in the container."""
    thread_percentage: types.Percentage | None = None
    """Default share of the GPU's threads that one client may use; empty = all."""
    memory_limit: types.MemoryLimit | None = None
    """GPU memory that one client may allocate, such as 4G or 512M; empty = all."""
    topology: Literal["container", "containers"] = "container"
    """Where clients run: side by side in one container, or each in a container of its own beside
    the daemon's, as on Dataflow."""
    cpus: types.Cpus | None = None
    """CPUs that the control daemon and its server are pinned to, such as 0-1; empty = all of the
    container."""
    gpu: types.GpuChoice | None = None
    """The GPU that is shared where the host has several: its index or its UUID; empty = all of
    them."""
    exclusive: bool = False
    """Set the compute mode EXCLUSIVE_PROCESS meanwhile: a process that misses the daemon fails
    instead of running without MPS."""


class DataflowSettings(_Model):
    """The Dataflow job that the worker stands for."""

    machine_type: types.MachineType | None = None
    """Machine type of the job's workers; empty = the VM's."""
    region: types.Region | None = None
    """Region of the job; empty = that of the VM's zone."""


class HostSettings(_Model):
    """A host that exists already."""

    address: types.Address
    """What ssh connects to, an alias of ssh_config included; or `local` for this machine."""
    port: types.Port | None = None
    """TCP port of its SSH server; empty = the port of ssh_config, else 22."""
    user: types.User | None = None
    """User to log in as; empty = the user of ssh_config."""
    identity: types.LocalPath | None = None
    """Private key file; empty = the keys of ssh_config and the agent."""
    host_key: types.HostKey | None = None
    """The host's public key; empty = it must be in a known-hosts file."""
    become: Literal["sudo", "none"] = "sudo"
    """How root is reached: one `sudo -n` for the whole script, or not at all."""
    driver: Literal["cos", "present"] | None = None
    """How the GPU driver is installed: by COS's installer, or not at all; empty = by the
    operating system in /etc/os-release."""
    driver_dir: types.AbsolutePath | None = None
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
        """The record of a host of this name."""
        return model.Host(name=name, **self.model_dump())


Check: TypeAlias = Callable[["Settings"], None]
"""A check that needs more than the settings, such as the catalogue of machines. It raises
`SettingsError` whose `where` is the key."""


class Settings(_Model):
    """Every setting, under the key `provision`."""

    cloud: Literal["gce", "mock"] = "mock"
    """Where VMs are created; empty = gce when `project` is set, else the embedded mock."""
    project: types.Project | None = None
    """Google Cloud project that is billed."""
    zones: types.Locations = DEFAULT_ZONES
    """Where to try, in this order: zones, regions (all their zones) or `everywhere`; zones without
    the GPU are skipped."""
    name: types.Name = "dev"
    """Name of the VM, which is the host that tasks act on by default."""
    machine_type: types.MachineType | None = None
    """Machine type; empty = that of the Dataflow job, or else the smallest comfortable one for the
    GPU."""
    gpu: types.OptionalGpu = "nvidia-l4"
    """Accelerator type; none = a VM without a GPU."""
    gpu_count: types.GpuCount = 1
    """How many of them."""
    disk_gb: types.DiskGb = 200
    """Size of the boot disk in GB."""
    image: types.CosImage = "cos-125-lts"
    """Family or image of the project cos-cloud."""
    ttl: types.Ttl = "8h"
    """Time to live: the cloud itself stops the VM after it; "none" = never."""
    prices: types.LocalPath | None = None
    """A price list of your own, in the form of provision/cloud/market/data/prices.json; empty = the
    packaged one."""
    ssh: Literal["direct", "iap"] = "direct"
    """The way to the VM: its external address, or a tunnel of Identity-Aware Proxy through
    `gcloud`; it has no such address then."""
    ttl_action: Literal["stop", "delete"] = "stop"
    """What the cloud does at the end of the time to live, and when it takes a Spot VM back."""
    idle_stop: types.Idle = "none"
    """A VM powers itself off after this time without use (GPU, terminals, runs); "none" = never."""
    idle_delete: types.Idle = "none"
    """A label of the VM: `vm.gc` deletes it, after asking, when it has been stopped for this time;
    "none" = never."""
    provisioning: Literal["standard", "spot", "flex-start"] = "standard"
    """How the VM is bought: at any time, cheaper until the cloud takes it back, or once capacity is
    found, for at most seven days."""
    capacity_wait: types.Wait | None = None
    """With `provisioning: flex-start`, the wait for capacity in each zone; empty = 10m."""
    reservation: types.Name | None = None
    """Reservation that provides the VM's capacity; empty = Compute Engine chooses one that fits."""
    os_login: types.OsLogin = "auto"
    """Log in to VMs through OS Login (on), with a key in their metadata (off), or as the project's
    metadata says (auto)."""
    driver: types.Driver = "default"
    """Version of the GPU driver."""
    registries: types.Registries = ()
    """Registries to log in to on the host, beside those of the images."""
    recipes: types.Recipes = ()
    """Recipes of your own, each "module:function", run after the built-in ones."""
    worker: WorkerSettings = WorkerSettings()
    mps: MpsSettings = MpsSettings()
    dataflow: DataflowSettings = DataflowSettings()
    hosts: dict[types.HostName, HostSettings] = {}
    """Hosts that exist already, by name."""

    @classmethod
    def from_levels(cls, levels: Iterable[Level], check: Check | None = None) -> Self:
        """The settings that `levels` set, the weakest first.

        Raises `SettingsError` with the key, its value, where it is written and what is allowed.
        """
        merged = merge(levels)
        try:
            settings = cls.model_validate(dict(merged.data))
        except ValidationError as error:
            raise settings_error(error.errors(include_url=False), cls, merged) from None
        if check is not None:
            _run_check(check, settings, merged)
        return settings

    @property
    def idle_stop_s(self) -> int | None:
        """Seconds without use after which a VM powers itself off; None = never."""
        return validators.idle_seconds(self.idle_stop)

    @property
    def idle_delete_s(self) -> int | None:
        """Seconds after which `vm.gc` deletes a stopped VM; None = never."""
        return validators.idle_seconds(self.idle_delete)

    @property
    def ttl_s(self) -> int | None:
        """The time to live in seconds; None = never stopped."""
        return validators.ttl_seconds(self.ttl)

    @property
    def capacity_wait_s(self) -> int | None:
        """Seconds of the wait for capacity in each zone; None where it is not set."""
        return None if self.capacity_wait is None else validators.wait_seconds(self.capacity_wait)

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        """Derive keys that are not set: the cloud from the project, no GPUs from `gpu: none`."""
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
    def _check_combinations(self) -> Self:
        if self.cloud == "gce" and self.project is None:
            raise _impossible(
                "cloud",
                "Compute Engine needs a project that is billed",
                "set provision.project, or cloud to mock",
            )
        if self.gpu is not None and self.disk_gb < GPU_DISK_MIN_GB:
            raise _impossible(
                "disk_gb",
                f"under {GPU_DISK_MIN_GB} GB the disk fills while the worker image is pulled: "
                "GPU images are large",
                f"set provision.disk_gb to {GPU_DISK_MIN_GB} or more",
            )
        if self.mps.gpu is not None and "CUDA_VISIBLE_DEVICES" in self.worker.env:
            raise _impossible(
                "mps.gpu",
                "the daemon chooses the GPU, and a client with CUDA_VISIBLE_DEVICES finds none",
                "remove CUDA_VISIBLE_DEVICES from provision.worker.env",
            )
        if not self.zones:
            raise _impossible(
                "zones",
                "without a zone there is nowhere to put the VM",
                "name at least one zone, such as us-central1-a",
            )
        return self


def _run_check(check: Check, settings: Settings, merged: Merged) -> None:
    """Run the check. Its error gets the key's value and where that is written."""
    try:
        check(settings)
    except SettingsError as error:
        path = tuple(error.where.split("."))
        what, where = error.what, merged.location(path) or "defaults"
        if path[0] in Settings.model_fields:
            what = f"provision.{error.where} is {reduce(getattr, path, settings)!r}: {what}"
        raise SettingsError(what, where=where, why=error.why, fix=error.fix) from None
