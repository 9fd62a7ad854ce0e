# shellcheck shell=sh
# Prints what a plan needs to know of the container and its GPU, as key=value lines.
# query: fields of nvidia-smi --query-gpu; client: source of the CUDA probe client in Python;
# gpu: the GPU by index or UUID, empty for the first that nvidia-smi lists.
query=$1 client=$2 gpu=$3

smi() { timeout 20 nvidia-smi ${gpu:+-i "$gpu"} "$@"; }
# GNU's nproc takes OMP_NUM_THREADS, which every worker has, for the number of cores.
echo "vcpus=$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT && nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"
echo "shm_mib=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print int($2 / 1024) }')"
echo "gpu=$(smi "--query-gpu=$query" --format=csv,noheader,nounits 2>&1 | head -n 1)"
echo "banner=$(timeout 20 nvidia-smi 2>/dev/null | grep -m 1 'CUDA' || true)"
# The client gets the UUID of a chosen GPU: CUDA may number the GPUs in another order than nvidia-smi.
if test -n "$gpu"; then
    CUDA_VISIBLE_DEVICES=$(smi --query-gpu=uuid --format=csv,noheader 2>/dev/null)
    export CUDA_VISIBLE_DEVICES
fi
# The client runs outside of MPS (its pipe directory does not exist): a client of MPS sees only the
# multiprocessors of the thread percentage that is in force.
python=$(command -v python3 || command -v python || true)
test -z "$python" || CUDA_MPS_PIPE_DIRECTORY=/nonexistent timeout 20 "$python" -c "$client" </dev/null 2>/dev/null || true
