# shellcheck shell=sh disable=SC2154
# prepare_program: warns where MPS is enabled but no daemon runs, and unsets the hidden variable.
# Reads $mps_fragment, $daemon, $daemon_runs, $warning and $hidden.
prepare_program() {
    test ! -e "$mps_fragment" || docker exec "$daemon" sh -c "$daemon_runs" </dev/null >/dev/null 2>&1 || echo "$warning" >&2
    test -z "$hidden" || unset "$hidden"
}
