# shellcheck shell=sh disable=SC2154
# Prints what the daemon of this container reports, in two sessions of the control tool: defaults,
# then the server. $1: key of the containers, $2: the chosen GPU, $3: whether to list clients.
# Reads $notes.
key=$1 device=$2 list_clients=$3

answer=$(ask_defaults)
percentage=$(printf '%s\n' "$answer" | head -n 1)
echo "percentage=$percentage"
is_number "$percentage" || {
    echo "left=$(our_processes | tr '\n' ' ')"
    if listed=$(v3_servers); then
        printf '%s\n' "$listed" | sed 's/^/named|/'
        ask 'client list --format=csv' | sed 's/^/client|/'
    fi
    exit 0
}
if pid=$(daemon_pid); then
    cpus=$(affinity_of "$pid")
    echo "cpu_list=$cpus"
    test "$cpus" != "$(affinity_of self)" || cpus=all
    echo "daemon=$pid"
    echo "cpus=$cpus"
    echo "visible=$(variable_of "$pid" CUDA_VISIBLE_DEVICES)"
    echo "planned_memory=$(variable_of "$pid" PROVISION_MPS_MEMORY)"
fi
case $device in
    '' | GPU-*) ;;
    *)
        indices=$(nvidia-smi --query-gpu=index,uuid --format=csv,noheader | tr -d ' ' | tr '\n' ' ')
        echo "indices=$indices"
        ;;
esac
echo "memory=$(lines_of limit "$answer")"
listed=$(lines_of pid "$answer")
for server in $listed; do
    answer=$(ask_server "$server")
    echo "server.$server=$(lines_of state "$answer")"
    echo "share.$server=$(lines_of share "$answer")"
    echo "memory.$server=$(lines_of limit "$answer")"
    echo "uid.$server=$(uid_of "$server")"
    test -n "$list_clients" || continue
    for client in $(lines_of pid "$answer"); do
        echo "client.$client=$({ tr '\0' ' ' <"/proc/$client/cmdline"; } 2>/dev/null || true)"
    done
done
# A proof holds for the server and the containers that it was made with.
if test -r "$notes/proof" && read -r proven <"$notes/proof" &&
    test "$proven" = "$(server_stamp "$listed"):$key"; then
    echo "proof=current"
    sed -n '2,$s/^\([^:]*\): /proven.\1=/p' "$notes/proof"
fi
