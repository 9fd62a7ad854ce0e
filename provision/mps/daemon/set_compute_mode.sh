# shellcheck shell=sh
# Sets the compute mode to `wanted`: exclusive, default, or empty for the mode that was found.
#
# record: file with the mode of each GPU as it was found before the first change. device: the GPU
# (index or UUID), empty for all. A recorded GPU that is no longer chosen gets its own mode back.
: "${record:?}" "${driver:?}" "${device?}" "${wanted?}"

set --
test -z "$device" || set -- -i "$device"
modes() { nvidia_smi "$@" --query-gpu=uuid,compute_mode --format=csv,noheader; }
chosen=
test "$wanted" != exclusive || chosen=$(modes "$@")
if test -r "$record"; then
    while IFS=', ' read -r uuid mode; do
        case $chosen in *"$uuid"*) continue ;; esac
        case $mode in
            Default) mode=DEFAULT ;;
            Prohibited) mode=PROHIBITED ;;
            *) mode=EXCLUSIVE_PROCESS ;;
        esac
        nvidia_smi -i "$uuid" -c "$mode"
    done <"$record"
    test "$wanted" = exclusive || rm -f "$record"
fi
test -n "$wanted" || exit 0
found=$(modes "$@")
case $found in
    *Prohibited*)
        echo "the compute mode is Prohibited: $found"
        exit 1
        ;;
esac
test "$wanted" = exclusive || exit 0
mkdir -p "${record%/*}"
printf '%s\n' "$found" | while IFS= read -r line; do
    grep -F "${line%%,*}" "$record" 2>/dev/null || printf '%s\n' "$line"
done >"$record.new"
mv -f "$record.new" "$record"
nvidia_smi "$@" -c EXCLUSIVE_PROCESS
