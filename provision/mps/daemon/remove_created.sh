# shellcheck shell=sh disable=SC2154
# As root, removes what enabling created, once no daemon answers. Reads $notes and $lock.
take_lock
! daemon_answers || exit 0
if test -r "$notes/made"; then
    while IFS= read -r path; do rm -rf "$path"; done <"$notes/made"
fi
for path in "$notes"/*; do test "$path" = "$lock" || rm -f "$path"; done
