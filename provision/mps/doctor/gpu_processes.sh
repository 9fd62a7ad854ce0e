# shellcheck shell=sh
# Prints the processes of a host that run CUDA: variables among `watched`, frameworks, and the type
# that nvidia-smi gives them; then the driver's lines of the kernel's log. Environments are read on
# the host, which may read them.
: "${driver:?}" "${watched:?}"

for pid in $(gpu_holders); do
    read -r comm <"/proc/$pid/comm" || continue
    case $comm in nvidia-*) continue ;; esac
    echo "worker|$pid|$comm"
    for library in tensorflow jaxlib; do
        grep -q "/$library/" "/proc/$pid/maps" && echo "uses|$pid|$library"
    done
    for variable in $watched; do
        tr '\0' '\n' <"/proc/$pid/environ" | sed -n "s/^$variable=/env|$pid|$variable|/p"
    done
done 2>/dev/null
test ! -x "$driver/bin/nvidia-smi" ||
    nvidia_smi 2>/dev/null | sed -n '/^| *[0-9].* [CGM+]* /s/^/smi|/p'
if log=$(dmesg 2>/dev/null); then
    echo kernel=yes
    printf '%s\n' "$log" | grep -a NVRM | tail -n 50 | sed 's/^/kernel|/'
fi
true
