# shellcheck shell=sh disable=SC2154
# A function for a host: nvidia-smi of the driver folder. It reads $driver.
nvidia_smi() { LD_LIBRARY_PATH=$driver/lib64 timeout 20 "$driver/bin/nvidia-smi" "$@"; }
