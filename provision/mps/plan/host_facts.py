"""What a plan has to know of a container: one script, and what it printed as HostFacts. Pure."""

from __future__ import annotations

from provision.core.parsing import parse_int, unreadable_answer
from provision.core.shell import Script, fields, script
from provision.mps.daemon.client import CLIENT, seen
from provision.mps.plan.sizing import HostFacts, sms_of
from provision.resources import nvidia_smi
from provision.resources.nvidia_smi import GPU_FIELDS

# GNU's nproc takes OMP_NUM_THREADS, which every worker has, for the number of cores. The client
# runs outside of MPS (its pipe directory does not exist), else it would see the share that is in
# force. Where the settings choose a GPU, it is told that one by its UUID: CUDA may count the GPUs
# in another order than nvidia-smi.
_INSIDE = """
query=$1 client=$2 gpu=$3
smi() { timeout 20 nvidia-smi ${gpu:+-i "$gpu"} "$@"; }
echo "vcpus=$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT && nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"
echo "shm_mib=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print int($2 / 1024) }')"
echo "gpu=$(smi "--query-gpu=$query" --format=csv,noheader,nounits 2>&1 | head -n 1)"
echo "banner=$(timeout 20 nvidia-smi 2>/dev/null | grep -m 1 'CUDA' || true)"
if test -n "$gpu"; then
    CUDA_VISIBLE_DEVICES=$(smi --query-gpu=uuid --format=csv,noheader 2>/dev/null)
    export CUDA_VISIBLE_DEVICES
fi
python=$(command -v python3 || command -v python || true)
test -z "$python" || CUDA_MPS_PIPE_DIRECTORY=/nonexistent timeout 20 "$python" -c "$client" </dev/null 2>/dev/null || true
"""


def host_facts_script(container: str, gpu: str = "") -> Script:
    """Everything that `host_facts` reads, in one exchange. `running=` is empty where the container does not run.

    `gpu` is the one that the settings choose, by index or UUID; else the first that nvidia-smi
    lists.
    """
    return script(
        """
running=$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null || true)
test "$running" = true || exit 0
echo "running=$running"
echo "mock=${R:+yes}"
docker exec -i "$name" sh -c "$body" provision "$query" "$client" "$gpu" </dev/null 2>/dev/null
""",
        name=container,
        body=_INSIDE,
        query=GPU_FIELDS,
        client=CLIENT,
        gpu=gpu,
    )


def is_running(text: str) -> bool:
    """True where the script found a container to look into."""
    return fields(text).get("running", "").strip() == "true"


def is_mock(text: str) -> bool:
    """True where the host is a mock, whose GPU computes nothing: there alone the root of the host is a folder."""
    return fields(text).get("mock", "").strip() == "yes"


def gpu_uuid(text: str) -> str:
    """UUID of the GPU whose facts the script printed; empty where it printed none."""
    listed = nvidia_smi.read_gpus(fields(text).get("gpu", ""))
    return listed[0].uuid if listed else ""


def host_facts(text: str) -> HostFacts:
    """What `host_facts_script` printed. Raises `ProbeUnreadable` where nvidia-smi did not list a GPU."""
    found = fields(text)
    listed = nvidia_smi.read_gpus(found.get("gpu", ""))
    if not listed:
        raise unreadable_answer("nvidia-smi --query-gpu", found.get("gpu", ""))
    gpu, client = listed[0], seen(text)
    by_name = sms_of(gpu.name)
    return HostFacts(
        gpu=gpu.name,
        driver=gpu.driver,
        compute_capability=gpu.compute_capability,
        cuda=client.cuda or nvidia_smi.read_cuda_version(found.get("banner", "")),
        memory_total_mib=gpu.memory_total_mib,
        memory_free_mib=gpu.memory_free_mib,
        sm_count=client.sms or by_name,
        sm_source="driver" if client.sms else "table" if by_name else "",
        vcpus=max(1, parse_int(found.get("vcpus", "")) or 1),
        shm_mib=parse_int(found.get("shm_mib", "")),
        compute_mode=gpu.compute_mode,
        mig=gpu.mig,
    )
