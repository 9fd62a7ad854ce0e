# shellcheck shell=sh disable=SC2154
# Makes containers run. Reads $image, $spec, $devices, $folder, $joins, and $because where the
# driver was made anew under a container. Uses container_records, driver_stamp.

# inspect_image: reads what every container is made from now.
inspect_image() {
    driver=$(driver_stamp)
    id=$(docker image inspect -f '{{.Id}}' "$image")
    owner=
    test -z "$joins" || owner=$(docker container inspect -f '{{.Id}}' "$joins")
    environment=$(docker image inspect -f '{{range .Config.Env}}{{println .}}{{end}}' "$image")
    path=$(printf '%s\n' "$environment" | sed -n 's/^PATH=//p' | tail -n 1)
    libraries=$(printf '%s\n' "$environment" | sed -n 's/^LD_LIBRARY_PATH=//p' | tail -n 1)
    path=${path:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
    case $path: in /usr/local/nvidia/bin:*) ;; *) path=/usr/local/nvidia/bin:$path ;; esac
    case $libraries: in
        /usr/local/nvidia/lib64:*) ;;
        *) libraries=/usr/local/nvidia/lib64${libraries:+:$libraries} ;;
    esac
}

# start_or_create CONTAINER OPTION…: a container whose specification, image and driver are current
# is only started (after a boot), or restarted where the driver was made anew under it. Any other
# one is recreated, and so is one that joined the namespaces of a container that was replaced.
start_or_create() {
    box=$1
    shift
    record=$(container_records "$box")
    record=${record#*|}
    if test "$record" = "$id|$spec|$driver|$owner"; then
        if test -n "${because-}"; then docker restart --time 10 "$box"; else docker start "$box"; fi
        return 0
    fi
    case $record in
        '') ;;
        "${record%%|*}||"*) echo "a container of this name exists and was not made by provision: $box"; exit 77 ;;
        *) docker rm --force "$box" ;;
    esac
    set -- --env "PATH=$path" --env "LD_LIBRARY_PATH=$libraries" "$@"
    if test -n "$devices"; then
        for node in "$R"/dev/nvidia[0-9]* "$R"/dev/nvidiactl "$R"/dev/nvidia-uvm "$R"/dev/nvidia-uvm-tools; do
            test ! -e "$node" || set -- --device "$node:${node#"$R"}" "$@"
        done
    fi
    docker run --detach --name "$box" --label "provision.spec=$spec" --label "provision.driver=$driver" \
        --label "provision.joined=$owner" "$@" "$image" infinity
}
