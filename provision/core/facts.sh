# shellcheck shell=sh
# Prints the facts of the host as key=value lines; `read_facts` parses them.
# Uses os_release, pci_gpus and loaded_driver. A file that the host lacks leaves its facts out.
#
# Container-Optimized OS names itself ID=cos, its milestone VERSION_ID and its build BUILD_ID.
os_release 'ID|VERSION_ID|BUILD_ID'
system=$(uname -rm)
echo "arch=${system##* }"
echo "kernel=${system% *}"
echo "cpus=$(grep -c "^processor" "$R/proc/cpuinfo" 2>/dev/null || nproc)"
echo "uid=$(id -u)"
echo "user=${SUDO_USER:-$(id -un)}"
while read -r key value _; do
    case $key in MemTotal:) echo "memory_mib=$((value / 1024))" ;; esac
done <"$R/proc/meminfo"
echo "gpus=$(pci_gpus)"
echo "driver_loaded=$(loaded_driver)"
if test -r "$R/proc/sys/kernel/random/boot_id"; then
    read -r boot <"$R/proc/sys/kernel/random/boot_id"
    echo "boot_id=$boot"
fi
