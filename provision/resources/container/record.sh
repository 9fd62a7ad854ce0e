# shellcheck shell=sh disable=SC2154
# What containers were made from, and what a container would be made from now. Reads $image,
# $folder (the driver's, empty without a GPU) and $joins. Uses loaded_driver.

# container_records CONTAINER…: prints RUNNING|IMAGE|SPEC|DRIVER|JOINED for each that exists.
container_records() {
    docker container inspect -f '{{.State.Running}}|{{.Image}}|{{index .Config.Labels "provision.spec"}}|{{index .Config.Labels "provision.driver"}}|{{index .Config.Labels "provision.joined"}}' "$@" 2>/dev/null || true
}

# driver_stamp: prints what a container finds of the driver when it starts: the loaded version, how
# the driver's folder is mounted, and which folder it is (its inode, since the installer makes the
# folders anew).
driver_stamp() {
    stamp=$(loaded_driver)
    if test -n "$folder"; then
        case ,$(findmnt -rno OPTIONS -M "$folder" 2>/dev/null | tail -n 1), in
            ,,) stamp=$stamp/none ;;
            *,noexec,*) stamp=$stamp/noexec ;;
            *) stamp=$stamp/exec ;;
        esac
        stamp=$stamp:$(stat -c %i "$folder/lib64" 2>/dev/null || true)
    fi
    echo "$stamp"
}
