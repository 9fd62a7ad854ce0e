# shellcheck shell=sh
# Gathers the programs and libraries of the driver that the host already has in folder $dir, since a
# container mounts folders, and writes file $record.
#
# The 64-bit libraries are those that ldconfig lists as such: the folder of the others differs
# between distributions (/usr/lib on Fedora and SUSE). Of several with one name, the one of the
# loaded module's version is taken (a CUDA toolkit brings a libcuda of its own in compat/), else the
# first that ldconfig lists, which is the one that the linker takes. A file is put in place by a
# rename: writing into a library that is mapped kills the programs that use it.
# Uses loaded_driver.
: "${record:?}" "${dir:?}"
version=$(loaded_driver)
if test -z "$version"; then
    echo "no NVIDIA driver is loaded on this host"
    exit 76
fi
mkdir -p "$dir/bin" "$dir/lib64" "${record%/*}"
put() { cmp -s "$1" "$2" || { cp -fL "$1" "$2.new" && mv -f "$2.new" "$2"; }; }
if ! test -e "$R/dev/nvidia-uvm" && command -v nvidia-modprobe >/dev/null; then nvidia-modprobe -c 0 -u; fi
for tool in nvidia-smi nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia-debugdump nvidia-persistenced; do
    path=$(command -v "$tool" || true)
    test -z "$path" || test "$path" = "$dir/bin/$tool" || put "$path" "$dir/bin/$tool"
done
ldconfig -p | sed -n 's/.*([^)]*64[^)]*) => //p' |
    grep -E '/lib(cuda|nvidia|nvcuvid|nvoptix|cudadebugger|EGL_nvidia|GLX_nvidia|GLESv[12].*_nvidia)[^/]*\.so' |
    while read -r library; do
        case $(readlink -f "$library") in
            *".so.$version") echo "own $library" ;;
            *) echo "other $library" ;;
        esac
    done |
    awk '/^own / { print; next } { others = others $0 "\n" } END { printf "%s", others }' |
    {
        taken=:
        while read -r _ library; do
            name=${library##*/} target=$dir/lib64/${library##*/}
            case $taken in *":$name:"*) continue ;; esac
            taken=$taken$name:
            test "$library" = "$target" || put "$library" "$target"
        done
    }
printf 'asked=present\nversion=%s\nbuild_id=\n' "$version" >"$record"
