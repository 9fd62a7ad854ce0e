# shellcheck shell=sh
# Runs a command once in the container and samples the GPU meanwhile. Standard output: the samples.
# Standard error: what the command prints. Exit status: that of the command.
# $2 is the GPU by index or UUID; empty for the first one.
command=$1 gpu=${2:-0}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Where there is a choice, the command sees the GPU that is sampled, by its UUID: CUDA may number the
# GPUs in another order than nvidia-smi.
if test -n "$2" || test "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -gt 1; then
    gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader -i "$gpu" 2>&1 | head -n 1)
    case $gpu in GPU-*) export CUDA_VISIBLE_DEVICES="$gpu" ;; *) echo "gpu=$gpu"; exit 0 ;; esac
fi

used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i "$gpu" 2>/dev/null; }
echo "before=$(used)"
nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader,nounits -i "$gpu" -lms 200 >"$folder/memory" 2>/dev/null &
first=$!
nvidia-smi dmon -i "$gpu" -s u --gpm-metrics 2 >"$folder/activity" 2>/dev/null &
second=$!

# The command runs outside of MPS (its pipe directory does not exist): a thread percentage in force
# would shrink its context and its activity. In EXCLUSIVE_PROCESS mode only the MPS server may use
# the GPU, so the command is a client there, and sees the GPU that the daemon offers.
mode=$(nvidia-smi --query-gpu=compute_mode --format=csv,noheader -i "$gpu" 2>/dev/null)
case $mode in Exclusive*) unset CUDA_VISIBLE_DEVICES ;; *) export CUDA_MPS_PIPE_DIRECTORY=/nonexistent ;; esac

read -r start _ </proc/uptime
sh -c "$command" >&2 </dev/null
status=$?
read -r end _ </proc/uptime
# The last line of `times`: processor time of the command and of all processes it waited for.
times >"$folder/times"
kill "$first" "$second" 2>/dev/null
wait 2>/dev/null

echo "status=$status"
echo "start=$start"
echo "end=$end"
echo "times=$(tail -n 1 "$folder/times")"
sed 's/^/memory /' "$folder/memory"
sed 's/^/activity /' "$folder/activity"
exit "$status"
