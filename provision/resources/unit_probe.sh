# shellcheck shell=sh
# Prints what systemd reports of $unit, and the text of its file $path in base64.
: "${path:?}" "${unit:?}"
test -f "$path" || exit 0
echo "enabled=$(systemctl is-enabled "$unit" 2>/dev/null)"
systemctl show --property=ActiveState,NeedDaemonReload "$unit" 2>/dev/null
echo "content="
base64 <"$path"
