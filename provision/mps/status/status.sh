# shellcheck shell=sh
# Prints the status of MPS on a host as lines that `read_status` reads.
#
# name: the daemon's container. worker: the first worker container where that is another one, and
# workers: how many there should be (empty: one for each CPU). fragment: boot fragment without which
# only `enabled=no` is printed. skip_joined: ignore a container that joins another's namespaces.
# device: the GPU of the settings, index or UUID. users: also list clients, GPUs and their users.
# if_others: print nothing while MPS alone holds a GPU. body: daemon.sh, run in the container.
: "${name:?}" "${worker?}" "${workers?}" "${fragment?}" "${skip_joined?}" "${device?}" "${users?}"
: "${if_others?}" "${driver:?}" "${gpu_fields:?}" "${process_fields:?}" "${process_gpu_fields:?}"
: "${body:?}"

if test -n "$if_others"; then
    others=
    for pid in $(gpu_holders); do
        read -r comm <"/proc/$pid/comm" || continue
        case $comm in nvidia-cuda-mps*) ;; *) others=yes ;; esac
    done 2>/dev/null
    test -n "$others" || exit 0
fi
if test -n "$fragment" && ! test -e "$fragment"; then
    echo "enabled=no"
    exit 0
fi
state=$(docker container inspect -f '{{.State.Running}}|{{.HostConfig.PidMode}}' "$name" 2>/dev/null || true)
echo "container=${state%%|*}"
case $state in
    'true|container:'*) test -z "$skip_joined" || { echo "container=joined"; exit 0; } ;;
    'true|'*) ;;
    *) exit 0 ;;
esac
containers=$name
test -z "$worker" || containers=$(worker_containers "$worker")
docker exec "$name" sh -c "$body" provision "$(containers_key "$containers")" "$device" "$users" || true

test -n "$users" || exit 0
echo "boxes=$(printf '%s' "$containers" | tr '\n' ' ')"
test -z "$worker" || {
    echo "running=$(docker ps --format '{{.Names}}' | tr '\n' ' ')"
    echo "workers=${workers:-$(grep -c '^processor' "$R/proc/cpuinfo" 2>/dev/null || nproc)}"
}
echo "chosen=$device"
apps=
apps_known=
if test -x "$driver/bin/nvidia-smi"; then
    nvidia_smi --query-gpu="$gpu_fields" --format=csv,noheader,nounits | sed 's/^/gpu|/'
    if apps=$(nvidia_smi --query-compute-apps="$process_fields" --format=csv,noheader,nounits); then
        apps_known=yes
    fi
    printf '%s\n' "$apps" | sed '/./s/^/app|/'
    test -z "$device" ||
        nvidia_smi --query-compute-apps="$process_gpu_fields" --format=csv,noheader | sed 's/^/place|/'
    nvidia_smi | sed -n '/CUDA.*Version/s/^/smi|/p'
fi 2>/dev/null
# Without root, files that other users' processes hold open are hidden; nvidia-smi lists the
# processes that have a context.
{ test -r /proc/1/fd || test -n "$apps_known"; } && test -r /proc/1/status || echo 'users=unknown'
pids=$(gpu_holders && printf '%s\n' "$apps" | sed -n 's/^\([0-9][0-9]*\),.*/\1/p')
test -n "$pids" || exit 0
for container in $(docker ps --format '{{.Names}}'); do
    docker top "$container" -eo pid 2>/dev/null | sed -n "s/^ *\([0-9][0-9]*\).*/top|\1|$container/p"
done
for pid in $(printf '%s\n' "$pids" | sort -u); do
    read -r comm <"/proc/$pid/comm" || continue
    inner=$(sed -n 's/^NSpid:.*[[:space:]]\([0-9]*\)$/\1/p' "/proc/$pid/status")
    echo "holder|$pid|${inner:-$pid}|$comm|$(tr '\0\n' '  ' <"/proc/$pid/cmdline")"
done 2>/dev/null
