#!/bin/sh
# Publishes the public SSH host keys twice, so that a client can pin them before it connects: as
# guest attributes hostkeys/TYPE, which the Compute Engine API serves, and on the console (standard
# output), one line each:
#     provision-host-key TYPE BASE64 SHA256:FINGERPRINT
#
#     publish-host-keys.sh URL [CHECKS [PAUSE_S]]
# URL is that of the metadata server up to and including /computeMetadata/v1. The guest agent may
# add or replace keys seconds after sshd first answers, so they are read CHECKS times. The exit
# status is 1 when no key was found.
set -u
R=${PROVISION_MOCK_ROOT-}
url=${1:?usage: publish-host-keys.sh URL [CHECKS [PAUSE_S]]}/instance/guest-attributes/hostkeys
checks_left=${2:-12}
pause_s=${3:-5}

# key_files: prints the paths of the public keys that sshd serves.
key_files() {
    sshd -T 2> /dev/null | sed -n 's/^hostkey \(.*\)$/\1.pub/p'
}

# first_lines: prints the first line of each readable file whose path it reads.
first_lines() {
    while IFS= read -r file; do
        test ! -r "$file" || head -n 1 "$file"
    done
}

# public_keys: prints the keys that sshd serves. Where it cannot be asked, or has none yet, those of
# the two known folders are taken.
public_keys() {
    keys_of_sshd=
    test -n "$R" || keys_of_sshd=$(key_files | first_lines)
    if [ -n "$keys_of_sshd" ]; then
        printf '%s\n' "$keys_of_sshd"
    else
        printf '%s\n' "$R"/mnt/stateful_partition/etc/ssh/ssh_host_*_key.pub \
            "$R"/etc/ssh/ssh_host_*_key.pub | first_lines
    fi
}

# publish TYPE BASE64
publish() {
    fingerprint=$(printf '%s %s\n' "$1" "$2" | ssh-keygen -l -f /dev/stdin 2> /dev/null | cut -d ' ' -f 2)
    printf 'provision-host-key %s %s %s\n' "$1" "$2" "${fingerprint:--}"
    curl -sS -f --retry 3 --max-time 10 -o /dev/null -X PUT -H 'Metadata-Flavor: Google' \
        -H 'Content-Type: text/plain' --data "$2" "$url/$1" ||
        printf 'provision-host-key %s: not published as a guest attribute\n' "$1"
}

# publish_all KEYS: publishes of each type the first key, which is the one that sshd serves.
publish_all() {
    seen=' '
    while read -r type key _; do
        case $seen in *" $type "*) continue ;; esac
        seen="$seen$type "
        publish "$type" "$key"
    done << KEYS
$1
KEYS
}

published=
while :; do
    keys=$(public_keys)
    if [ -n "$keys" ] && [ "$keys" != "$published" ]; then
        publish_all "$keys"
        published=$keys
    fi
    checks_left=$((checks_left - 1))
    [ "$checks_left" -gt 0 ] || break
    sleep "$pause_s"
done
if [ -z "$published" ]; then
    echo "provision-host-key: no public host key found" >&2
    exit 1
fi
