# shellcheck shell=sh
# Writes $data (base64) to $path, the file of $unit, and has systemd read it; enables the unit and
# starts it anew where $enabled and $active are not empty.
# Uses stage_file.
: "${path:?}" "${unit:?}" "${data?}" "${enabled?}" "${active?}"
new=$path.provision.$$
stage_file "$new" 0644 "$data"
reload=no
if ! cmp -s "$new" "$path"; then
    mv -f "$new" "$path"
    reload=yes
fi
case $reload/$(systemctl show --property=NeedDaemonReload "$unit" 2>/dev/null) in
    *yes*) systemctl daemon-reload ;;
esac
if test -n "$enabled"; then systemctl enable "$unit"; fi
if test -n "$active"; then systemctl restart "$unit"; fi
