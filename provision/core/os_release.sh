# shellcheck shell=sh
# os_release KEYS: prints the KEY=value lines of /etc/os-release whose key is one of KEYS (separated
# by |), without quotes. The file is read, not sourced: it is the host's, and this runs as root.
# Its last line may lack the line feed.
os_release() { printf '%s\n' "$(sed -nE "s/\"//g; /^($1)=/p" "$R/etc/os-release" 2>/dev/null)"; }
