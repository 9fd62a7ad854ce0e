# shellcheck shell=sh disable=SC2034
# Sourced by every stand-in. R: the root of the host (empty on a real machine); S: where the mock keeps what no file of
# the host shows (mount table, loaded module, units, faults).
R=${PROVISION_MOCK_ROOT-}
S=${PROVISION_MOCK_STATE:-/run/provision-mock}
ME=${0##*/}
TAB=$(printf '\t')

say() { printf '%s\n' "$*"; }
complain() { printf '%s\n' "$*" >&2; }
die() { # STATUS TEXT...
    status=$1
    shift
    complain "$@"
    exit "$status"
}
fault() { test -e "$S/faults/$1"; }
is_root() { test -n "${PROVISION_MOCK_SUDO-}" || { test -z "$R" && test "$(id -u)" = 0; }; }

# The path as the host names it: scripts send "$R/var/..." and may send /var/... where a recipe was not careful.
host_path() {
    case $1 in
        "$R"/*) test -n "$R" && printf '%s' "${1#"$R"}" || printf '%s' "$1" ;;
        "$R") printf '/' ;;
        *) printf '%s' "$1" ;;
    esac
}
# The same, made absolute and without a trailing slash.
absolute() {
    case $1 in
        /*) path=$(host_path "$1") ;;
        *) path=$(host_path "$PWD")/$1 ;;
    esac
    while :; do
        case $path in
            */./*) path=${path%%/./*}/${path#*/./} ;;
            */.) path=${path%/.} ;;
            ?*/) path=${path%/} ;;
            *) break ;;
        esac
    done
    printf '%s' "${path:-/}"
}

# The processes of this host, by number: whatever lives below its spawner. On a real machine: all.
host_pids() {
    top=$(cat "$S/spawner" 2>/dev/null || echo 1)
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v top="$top" '
        { pid = $1; sub(/^.*\) /, ""); parent[pid] = $2 }
        END {
            for (pid in parent) {
                up = pid
                while (up in parent && up != top) up = parent[up]
                if (up == top && pid != top) print pid
            }
        }'
}

# --- the mount table: lines of target, source, type, options; later lines lie on top -----------------------------
top_options() { # of the mount on top at TARGET
    awk -F '\t' -v t="$1" '$1 == t { o = $4 } END { if (o == "") exit 1; print o }' "$S/mounts"
}
holder() { # the mount point that holds PATH
    awk -F '\t' -v p="$1" '{ t = $1; if (t == "/" || p == t || index(p, t "/") == 1) if (length(t) >= length(b)) b = t } END { print b }' "$S/mounts"
}
may_execute() { # is PATH on a mount that allows it
    case ,$(top_options "$(holder "$1")"), in *,noexec,*) return 1 ;; esac
}
# A folder without a mount of its own cannot be made noexec by an ordinary user, so the driver's programs follow the table
# by their mode: the kernel's answer to running them (126, Permission denied) and to `test -x` is the same.
settle_driver() {
    test -n "$R" || return 0
    test -d "$R/var/lib/nvidia/bin" || return 0
    if may_execute /var/lib/nvidia/bin; then mode=755; else mode=644; fi
    for program in "$R"/var/lib/nvidia/bin/*; do
        test -f "$program" && chmod "$mode" "$program"
    done
    :
}
publish_mounts() { # the views under /proc
    test -n "$R" || return 0
    mkdir -p "$R/proc/self"
    awk -F '\t' '{ printf "%s %s %s %s 0 0\n", $2, $1, $3, $4 }' "$S/mounts" >"$R/proc/mounts"
    awk -F '\t' '{ printf "%d 1 8:1 / %s %s - %s %s rw\n", NR + 20, $1, $4, $3, $2 }' "$S/mounts" >"$R/proc/self/mountinfo"
}
