# shellcheck shell=sh
# Prints file $record, the version in the installer's cache in folder $dir, the loaded version, which
# files $dir has, and whether the device nodes are there.
# Uses loaded_driver.
: "${record:?}" "${dir:?}"
if test -r "$record"; then cat "$record"; fi
if test -r "$dir/.cache"; then
    sed -n 's/^BUILD_ID=/cache_build=/p; s/^DRIVER_VERSION=/cache_version=/p' "$dir/.cache"
fi
echo "loaded=$(loaded_driver)"
test ! -e "$dir/bin/nvidia-smi" || echo smi=yes
test ! -e "$dir/lib64/libcuda.so.1" || echo libcuda=yes
devices=yes
for node in nvidia0 nvidiactl nvidia-uvm; do test -e "$R/dev/$node" || devices=; done
echo "devices=$devices"
