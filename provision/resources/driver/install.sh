# shellcheck shell=sh
# Installs driver $asked with the installer of Container-Optimized OS into folder $dir. A failure
# that may pass by itself is tried again after $pause seconds: $lock_tries times where another
# installer holds the lock, $network_tries times where a download failed.
#
# File $record keeps what was asked for, which version that was, and for which BUILD_ID. A label
# such as `latest` is resolved again only when one of them changes; a full version number needs no
# look-up on the network.
# Uses os_release and loaded_driver.
: "${asked:?}" "${record:?}" "${dir:?}" "${pause:?}" "${lock_tries:?}" "${network_tries:?}"
build=$(os_release BUILD_ID)
build=${build#*=}
recorded() { sed -n "s/^$1=//p" "$record" 2>/dev/null | tail -n 1; }
want=$asked
if test "$(recorded asked)" = "$asked" && test "$(recorded build_id)" = "$build" &&
    test -n "$(recorded version)"; then
    want=$(recorded version)
fi
check_loaded() {
    loaded=$(loaded_driver)
    test -n "$loaded" && test "$loaded" != "$1" || return 0
    echo "driver $loaded is loaded, $1 is wanted: a loaded module stays until the next reboot"
    exit 75
}
case $want in [0-9]*.[0-9]*) check_loaded "$want" ;; esac
mkdir -p "${record%/*}"
log=${record}-install.log
trap 'rm -f "$log.status"' EXIT
attempt=1
while :; do
    {
        status=0
        cos-extensions install gpu -- "-version=$want" 2>&1 || status=$?
        echo "$status" >"$log.status"
    } | tee "$log"
    read -r status <"$log.status"
    test "$status" != 0 || break
    tries=1
    if grep -qiE 'lock.* is locked' "$log"; then
        tries=$lock_tries
    elif grep -qiE 'status:? 404' "$log"; then
        tries=1
    elif grep -qiE 'Client.Timeout|failed to download|status:? 5[0-9][0-9]|exit status 125' "$log"; then
        tries=$network_tries
    fi
    test "$attempt" -lt "$tries" || exit "$status"
    attempt=$((attempt + 1))
    echo "trying again in $pause s ($attempt of $tries)"
    sleep "$pause"
done
version=$(sed -n 's/^DRIVER_VERSION=//p' "$dir/.cache" | tail -n 1)
test -n "$version" || { echo "the installer left no version in its cache file"; exit 1; }
printf 'asked=%s\nversion=%s\nbuild_id=%s\n' "$asked" "$version" "$build" >"$record.new"
mv -f "$record.new" "$record"
check_loaded "$version"
