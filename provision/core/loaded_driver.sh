# shellcheck shell=sh
# loaded_driver: prints the version of the loaded NVIDIA kernel module; nothing without one.
loaded_driver() {
    test -r "$R/sys/module/nvidia/version" || return 0
    read -r version <"$R/sys/module/nvidia/version"
    echo "$version"
}
