# shellcheck shell=sh
# loaded_driver: prints the version of the loaded NVIDIA kernel module; nothing without one.
loaded_driver() {
    { read -r version <"$R/sys/module/nvidia/version" && echo "$version"; } 2>/dev/null || true
}
