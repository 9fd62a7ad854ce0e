#!/bin/sh
# Powers this VM off when it was idle for LIMIT_S seconds. provision-idle.timer runs it each minute.
#     idle.sh LIMIT_S
# The VM is in use while a GPU computes or cannot be read, while a user types in a terminal or
# something is printed there, while provision runs a command here (dev.run, dev.exec, the build of an
# image, …), and while the boot is under way. An open connection alone is not use: editors keep
# connections open for days. The clock is the machine's uptime, which no change of the date moves. A
# reboot forgets the time of the last use, and counts as use itself.
set -u
set -f
R=${PROVISION_MOCK_ROOT-}
limit_s=${1:?usage: idle.sh LIMIT_S}
state=$R/run/provision
driver=$R/var/lib/nvidia

# smi WORD…: runs nvidia-smi, its output in $state/smi. A GPU that hangs may hold it in the kernel,
# where no signal reaches it: then it is left behind.
smi() {
    # shellcheck disable=SC2016 # the inner shell expands it
    LD_LIBRARY_PATH=$driver/lib64 timeout -k 5 30 sh -c \
        'answer=$1; shift; timeout -k 5 20 "$@" > "$answer" 2> /dev/null; exit $?' \
        sh "$state/smi" "$driver/bin/nvidia-smi" "$@" 2> /dev/null
}

# read_gpu: sets gpu to idle or busy, or to the reason why it cannot be read. Without the driver's
# module nothing computes. A GPU that does not report its utilization (a slice of one) is busy while
# a process is on it.
read_gpu() {
    gpu=idle
    unreported=
    test -e "$R/sys/module/nvidia/version" || return 0
    smi --query-gpu=utilization.gpu --format=csv,noheader,nounits ||
        { gpu="nvidia-smi ended with $?"; return; }
    test -s "$state/smi" || gpu="nvidia-smi prints nothing"
    while read -r percent; do
        case $percent in
            0) ;;
            '[N/A]' | '[Not Supported]') unreported=1 ;;
            '' | *[!0-9]*) gpu="nvidia-smi prints: $percent" ;;
            *) gpu=busy; return ;;
        esac
    done < "$state/smi"
    test -n "$unreported" || return 0
    smi --query-compute-apps=pid --format=csv,noheader ||
        { gpu="nvidia-smi ended with $?"; return; }
    test -s "$state/smi" && gpu=busy
}

# report_gpu: prints that the GPU cannot be read when that begins and then once an hour, since it
# keeps the VM from being stopped; prints when it can be read again.
report_gpu() {
    case $gpu in
        idle | busy)
            if test -e "$state/gpu-unread"; then echo "provision: the GPU can be read again"; fi
            rm -f "$state/gpu-unread"
            return
            ;;
    esac
    read -r reported 2> /dev/null < "$state/gpu-unread" &&
        test "$((now - reported))" -lt 3600 && return
    echo "provision: the GPU cannot be read ($gpu): it counts as used, so idle_stop does not stop this VM; its time to live does"
    printf '%s\n' "$now" > "$state/gpu-unread"
}

# provision_runs: true while provision runs a command on this host. It does so under a shell whose
# script begins with the line below; the words of a command line end with a NUL.
provision_runs() {
    set +f
    cat "$R"/proc/[0-9]*/cmdline 2> /dev/null | tr '\0' '\n' | grep -qxF 'exec 3<&0 </dev/null'
    found=$?
    set -f
    return "$found"
}

boot_runs() {
    test "$(systemctl is-active provision-boot.service 2> /dev/null)" = activating
}

# terminal_age: prints the seconds since the terminal used last was read or written; nothing without
# terminals.
terminal_age() {
    clock=$(date +%s)
    youngest=
    set +f
    for terminal in "$R"/dev/pts/[0-9]*; do
        for at in $(stat -c '%X %Y' "$terminal" 2> /dev/null); do
            age=$((clock - at))
            test "$age" -ge 0 || age=0
            if test -z "$youngest" || test "$age" -lt "$youngest"; then youngest=$age; fi
        done
    done
    set -f
    echo "$youngest"
}

read -r now _ < "$R/proc/uptime" || exit 1
now=${now%.*}
mkdir -p "$state"
read_gpu
report_gpu
read -r last 2> /dev/null < "$state/last-used" || last=$now
if test "$gpu" != idle || provision_runs || boot_runs; then
    last=$now
else
    age=$(terminal_age)
    if test -n "$age" && test "$((now - age))" -gt "$last"; then last=$((now - age)); fi
fi
printf '%s\n' "$last" > "$state/last-used.new"
mv -f "$state/last-used.new" "$state/last-used"
test "$((now - last))" -ge "$limit_s" || exit 0
echo "provision: not used for $(((now - last) / 60)) min: powering off (idle_stop)"
systemctl poweroff
