#!/bin/sh
# Puts the boot scripts of the user-data in place, unless newer ones were sent over SSH before.
# boot.sh comes last, by a rename: a machine that stops halfway starts over.
set -eu
R=${PROVISION_MOCK_ROOT-}
seed=$R/etc/provision/seed
state=$R/var/lib/provision
test ! -s "$state/boot.sh" || exit 0
mkdir -p "$state/boot.d"
for file in "$seed"/boot.d/*.sh; do
    test ! -f "$file" || cp "$file" "$state/boot.d/"
done
cp "$seed/boot.sh" "$state/boot.sh.new"
chmod 0755 "$state/boot.sh.new"
mv -f "$state/boot.sh.new" "$state/boot.sh"
