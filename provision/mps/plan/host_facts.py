"""What a plan knows of host and container: one script, and its output as `HostFacts`. Pure."""

from __future__ import annotations

from pathlib import Path

from provision.core.parsing import parse_int, unreadable_answer
from provision.core.shell import Script, fields, script, shell_text
from provision.mps.daemon.probe_client import probe_client_program, read_probe
from provision.mps.plan.gpu_limits import sms_of
from provision.mps.plan.model import HostFacts
from provision.resources import nvidia_smi
from provision.resources.container import IS_RUNNING

HERE = Path(__file__).parent


def host_facts_script(container: str, gpu: str = "") -> Script:
    """The script whose output `host_facts` reads. It prints nothing where the container is stopped.

    `gpu` is the GPU of the settings, by index or UUID; empty for the first that nvidia-smi lists.
    """
    return script(
        HERE / "host_facts.sh",
        uses=[IS_RUNNING],
        name=container,
        body=shell_text(HERE / "container_facts.sh"),
        query=nvidia_smi.GPU_FIELDS,
        client=probe_client_program(),
        gpu=gpu,
    )


def is_running(text: str) -> bool:
    """True where the script found the container running."""
    return fields(text).get("running", "").strip() == "true"


def is_mock(text: str) -> bool:
    """True where the host is a mock, whose GPU computes nothing."""
    return fields(text).get("mock", "").strip() == "yes"


def gpu_uuid(text: str) -> str:
    """The UUID of the GPU that the script printed; empty where it printed none."""
    listed = nvidia_smi.read_gpus(fields(text).get("gpu", ""))
    return listed[0].uuid if listed else ""


def host_facts(text: str) -> HostFacts:
    """The facts that the script printed.

    Raises `ProbeUnreadable` where nvidia-smi listed no GPU.
    """
    values = fields(text)
    listed = nvidia_smi.read_gpus(values.get("gpu", ""))
    if not listed:
        raise unreadable_answer("nvidia-smi --query-gpu", values.get("gpu", ""))
    gpu, client = listed[0], read_probe(text)
    sms_by_name = sms_of(gpu.name)
    return HostFacts(
        gpu=gpu.name,
        driver=gpu.driver,
        compute_capability=gpu.compute_capability,
        cuda=client.cuda or nvidia_smi.read_cuda_version(values.get("banner", "")),
        memory_total_mib=gpu.memory_total_mib,
        memory_free_mib=gpu.memory_free_mib,
        sm_count=client.sms or sms_by_name,
        sm_source="driver" if client.sms else "table" if sms_by_name else "",
        vcpus=max(1, parse_int(values.get("vcpus", "")) or 1),
        shm_mib=parse_int(values.get("shm_mib", "")),
        compute_mode=gpu.compute_mode,
        mig=gpu.mig,
    )
