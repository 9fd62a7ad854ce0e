# shellcheck shell=sh
# Bind-mounts $path onto itself exactly once, and makes that mount executable.
: "${path:?}"
layers() { findmnt -rno OPTIONS -M "$path" | grep -c . || true; }
mkdir -p "$path"
while test "$(layers)" -gt 1; do
    umount "$path"
done
test "$(layers)" -eq 1 || mount --bind "$path" "$path"
case ,$(findmnt -rno OPTIONS -M "$path" | tail -n 1), in
    *,noexec,*) mount -o remount,exec "$path" ;;
esac
