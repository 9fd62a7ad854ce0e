# shellcheck shell=sh
# Waits until $unit is not being started, and prints its latest log line every 15 rounds.
: "${unit:?}"
waited=0 pause=0.2
is_starting() {
    test "$(systemctl is-active "$unit" 2>/dev/null)" != activating || return 0
    case $(systemctl show --property Job --value "$unit" 2>/dev/null) in *[1-9]*) return 0 ;; esac
    return 1
}
while is_starting; do
    if test "$((waited % 15))" -eq 0; then
        echo "waiting for the boot of the host: $(journalctl --unit "$unit" --lines 1 --output cat 2>/dev/null || true)"
    fi
    waited=$((waited + 1))
    test "$waited" -lt 15 || pause=1
    sleep "$pause"
done
