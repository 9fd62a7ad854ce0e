# shellcheck shell=sh
# pci_gpus: prints the PCI addresses of the NVIDIA GPUs, separated by blanks. They are the display
# controllers (class 03) of vendor 10de.
pci_gpus() {
    for device in "$R"/sys/bus/pci/devices/*; do
        test -r "$device/vendor" || continue
        read -r vendor <"$device/vendor"
        read -r class <"$device/class"
        case $vendor/$class in 0x10de/0x03*) printf '%s ' "${device##*/}" ;; esac
    done
}
