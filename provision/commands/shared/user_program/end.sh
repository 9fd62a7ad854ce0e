# shellcheck shell=sh
# Runs in the container: ends every process of a run. `docker exec` forwards no signal, so they are
# found by the variable PROVISION_RUN, which child processes inherit.
token=$1

is_of_run() { { tr '\0' '\n' <"/proc/$1/environ" | grep -qxF "PROVISION_RUN=$token"; } 2>/dev/null; }
for_each() { for process in /proc/[0-9]*; do ! is_of_run "${process#/proc/}" || "$@" "${process#/proc/}" 2>/dev/null || true; done; }
ask() { echo "$1" | timeout 5 nvidia-cuda-mps-control 2>/dev/null || true; }

for_each kill -TERM
sleep 2
# What remains is removed from its MPS server first: killing a client with work in flight is
# undefined for all other clients (NVIDIA MPS guide).
if test -n "$(for_each echo)" && test -e "${PROVISION_MOCK_ROOT-}${CUDA_MPS_PIPE_DIRECTORY-}/nvidia-cuda-mps-control.pid"; then
    for server in $(ask get_server_list | grep -x '[0-9]*'); do
        for client in $(ask "get_client_list $server"); do
            ! is_of_run "$client" || ask "terminate_client $server $client" >/dev/null &
        done
    done
    wait
fi
for_each kill -KILL
