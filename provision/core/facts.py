"""The facts of a host: read in exchange 1 beside every probe, and again after every change. Pure."""

from __future__ import annotations

from provision.core.model import Facts
from provision.core.shell import Script, fields, script

# /etc/os-release is read, not sourced: it is the host's, and this runs as root. Container-Optimized
# OS names itself ID=cos, its milestone VERSION_ID and its build BUILD_ID. A GPU is a display
# controller (class 03) of vendor 10de.
FACTS: Script = script("""
if test -r "$R/etc/os-release"; then
    while IFS='=' read -r key value || test -n "$key"; do
        value=${value#\\"}
        case $key in
            ID) echo "os_id=${value%\\"}" ;;
            VERSION_ID) echo "os_version=${value%\\"}" ;;
            BUILD_ID) echo "build_id=${value%\\"}" ;;
        esac
    done <"$R/etc/os-release"
fi
system=$(uname -rm)
echo "arch=${system##* }"
echo "kernel=${system% *}"
echo "cpus=$(grep -c "^processor" "$R/proc/cpuinfo" 2>/dev/null || nproc)"
echo "uid=$(id -u)"
echo "user=${SUDO_USER:-$(id -un)}"
while read -r key value _; do
    case $key in MemTotal:) echo "memory_mib=$((value / 1024))" ;; esac
done <"$R/proc/meminfo"
gpus=
for device in "$R"/sys/bus/pci/devices/*; do
    test -r "$device/vendor" || continue
    read -r vendor <"$device/vendor"
    read -r class <"$device/class"
    case $vendor/$class in 0x10de/0x03*) gpus="$gpus ${device##*/}" ;; esac
done
echo "gpus=${gpus# }"
if test -r "$R/sys/module/nvidia/version"; then
    read -r version <"$R/sys/module/nvidia/version"
    echo "driver_loaded=$version"
fi
if test -r "$R/proc/sys/kernel/random/boot_id"; then
    read -r boot <"$R/proc/sys/kernel/random/boot_id"
    echo "boot_id=$boot"
fi
""")


def read_facts(text: str) -> Facts:
    """What `FACTS` printed. What is missing or not a number stays at its default."""
    found = fields(text)

    def number(key: str, default: int = 0) -> int:
        value = found.get(key, "").strip()
        return int(value) if value.isascii() and value.isdigit() else default

    return Facts(
        os_id=found.get("os_id", ""),
        os_version=found.get("os_version", ""),
        build_id=found.get("build_id", ""),
        arch=found.get("arch", ""),
        kernel=found.get("kernel", ""),
        cpus=number("cpus"),
        memory_mib=number("memory_mib"),
        uid=number("uid", -1),
        user=found.get("user", ""),
        gpus=tuple(found.get("gpus", "").split()),
        driver_loaded=found.get("driver_loaded", "").strip(),
        boot_id=found.get("boot_id", "").strip(),
    )
