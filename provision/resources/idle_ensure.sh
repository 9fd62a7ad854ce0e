# shellcheck shell=sh
# Writes the files $script, $service and $timer, each from its _data (base64), and starts $unit.
# Uses stage_file.
: "${script:?}" "${service:?}" "${timer:?}" "${unit:?}"
: "${script_data?}" "${service_data?}" "${timer_data?}"
put() {
    stage_file "$1.provision.$$" 0644 "$2"
    mv -f "$1.provision.$$" "$1"
}
put "$script" "$script_data"
put "$service" "$service_data"
put "$timer" "$timer_data"
systemctl daemon-reload
systemctl restart "$unit"
