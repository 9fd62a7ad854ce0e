# shellcheck shell=sh
# Stops timer unit $unit and removes the files $script, $service and $timer.
: "${script:?}" "${service:?}" "${timer:?}" "${unit:?}"
if test "$(systemctl is-active "$unit" 2>/dev/null)" = active; then systemctl stop "$unit"; fi
rm -f "$script" "$service" "$timer"
systemctl daemon-reload
