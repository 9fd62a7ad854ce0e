# shellcheck shell=sh
# Prints the compute mode of each GPU (of `device` alone where that is set) and the recorded modes.
: "${record:?}" "${driver:?}" "${device?}"

test ! -r "$record" || {
    echo "recorded=yes"
    sed -n 's/^\(GPU-[^,]*\), */found.\1=/p' "$record"
}
test -x "$driver/bin/nvidia-smi" || exit 0
set --
test -z "$device" || set -- -i "$device"
nvidia_smi "$@" --query-gpu=uuid,compute_mode --format=csv,noheader 2>/dev/null |
    sed -n 's/^\(GPU-[^,]*\), */mode.\1=/p'
