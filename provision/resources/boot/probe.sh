# shellcheck shell=sh
# Prints whether $unit is being started. With $check_user_data, on Container-Optimized OS, also whether the
# user-data of the instance starts it at the next boot. The metadata server is asked, since what
# cloud-init was given at this boot may be older.
# Uses os_release.
: "${unit:?}" "${check_user_data?}"
echo "state=$(systemctl is-active "$unit" 2>/dev/null)"
echo "job=$(systemctl show --property Job --value "$unit" 2>/dev/null)"
test -n "$check_user_data" && test "$(os_release ID)" = ID=cos || exit 0
metadata() {
    curl -sf -m 3 -H 'Metadata-Flavor: Google' "http://metadata.google.internal/computeMetadata/v1/instance/$1" 2>/dev/null
}
if metadata attributes/user-data | grep -q "$unit"; then listed=yes; else listed=no; fi
echo "in_user_data=$listed"
echo "instance=$(metadata name)"
echo "zone=$(metadata zone)"
