# shellcheck shell=sh
# os_release KEY: prints the value of KEY in /etc/os-release, without its quotes; nothing where it
# is absent. The file is read, not sourced: it is the host's, and this runs as root.
os_release() {
    test -r "$R/etc/os-release" || return 0
    while IFS='=' read -r key value || test -n "$key"; do
        test "$key" = "$1" || continue
        value=${value#\"}
        echo "${value%\"}"
    done <"$R/etc/os-release"
}
