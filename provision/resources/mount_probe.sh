# shellcheck shell=sh
# Prints how many mounts lie on $path, and exec=yes where the topmost is executable.
# `mount --bind` stacks on every call; findmnt prints a line for each layer, the topmost last.
: "${path:?}"
findmnt -rno OPTIONS -M "$path" | {
    layers=0
    top=
    while read -r options; do
        layers=$((layers + 1))
        top=$options
    done
    echo "layers=$layers"
    case ,$top, in
        ,, | *,noexec,*) ;;
        *) echo exec=yes ;;
    esac
}
