# shellcheck shell=sh
# Prints what the container has for a benchmark, and its GPU, as key=value lines. `gpu=` holds the
# UUID where the machine has several GPUs or $1 chooses one (index or UUID), or why there is none.
chosen=$1

echo "cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
command -v taskset >/dev/null && echo taskset=yes
command -v python3 >/dev/null && echo python=yes
python3 -c 'import importlib.util as u; print("torch=%s" % ("yes" if u.find_spec("torch") else ""))' 2>/dev/null
gpu=
if test -n "$chosen" || test "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -gt 1; then
    gpu=$(nvidia-smi -i "${chosen:-0}" --query-gpu=uuid --format=csv,noheader 2>&1 | head -n 1)
    echo "gpu=$gpu"
fi
for key in name driver_version memory.total compute_mode; do
    echo "$key=$(nvidia-smi ${gpu:+-i "$gpu"} --query-gpu="$key" --format=csv,noheader 2>/dev/null | head -n 1)"
done
