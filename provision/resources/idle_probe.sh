# shellcheck shell=sh
# Prints the files $script, $service and $timer in base64, and whether timer unit $unit is active.
: "${script:?}" "${service:?}" "${timer:?}" "${unit:?}"
for pair in "script $script" "service $service" "timer $timer"; do
    path=${pair#* }
    if test -f "$path"; then echo "${pair%% *}=$(base64 <"$path" | tr -d '\n')"; fi
done
if test "$(systemctl is-active "$unit" 2>/dev/null)" = active; then echo "active=yes"; fi
