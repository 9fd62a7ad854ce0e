#!/bin/sh
# Brings this host back after a boot: runs every fragment of boot.d in order. Their steps are those
# that provision itself runs.
# Safe to run at any time. It is read by sh, so it works from a file system mounted noexec.
# A fragment ends at its first step that fails; the next fragments are tried all the same.
R=${PROVISION_MOCK_ROOT-}
export R
status=0
step() {
    echo "provision: $1"
    timeout -k 10 "$2" sh -c "$3" </dev/null || {
        echo "provision: $1 failed with status $?" >&2
        exit 1
    }
}
for fragment in "$R"/var/lib/provision/boot.d/*.sh; do
    test -e "$fragment" || continue
    (. "$fragment") || status=$?
done
test "$status" = 0 || exit "$status"
echo "provision: ready"
