# shellcheck shell=sh
# Moves the files of a staging folder to their places in the workspace, the current folder, and
# removes the files that the archive before this one had and this one lacks.
#
# Files that programs wrote stay. The list of what was sent is kept for the next archive; `uniq -u`
# leaves what only the old list has. Old files go before new ones come, for a file may have become a
# folder. A folder that holds bytecode alone gives way to a file. A file comes by rename: a running
# program sees the old one or the new one, whole.
set -eu
stage=$1
LC_ALL=C
export LC_ALL
old=.provision/files
new=$stage/names
trap 'rm -rf "$stage"' EXIT

remove() { test "$#" = 0 || rm -f -- "$@"; }

prune() {
    sort "$old" "$new" "$new" >"$stage/sorted"
    uniq -u "$stage/sorted" >"$stage/gone"
    set --
    while IFS= read -r file; do
        if test -f "./$file" || test -h "./$file"; then set -- "$@" "./$file"; fi
        if test "$#" -ge 100; then
            remove "$@"
            set --
        fi
    done <"$stage/gone"
    remove "$@"
}

# clear_way FOLDER: removes a folder where a file is to come. Fails when it holds other files.
clear_way() {
    find "./$1" -depth -type d -name __pycache__ -exec rm -rf {} + || :
    find "./$1" -depth -type d -exec rmdir {} + 2>/dev/null || :
    if test -d "./$1"; then
        echo "$1 is a file here and a folder there, which holds what programs wrote" >&2
        exit 1
    fi
}

# place FILE...: moves files into the folder $at.
place() {
    test "$#" != 0 || return 0
    test -d "./$at" || mkdir -p "./$at"
    mv -f -- "$@" "./$at/"
}

if test -f "$old"; then prune; fi
at=.
set --
while IFS= read -r file; do
    if test -d "./$file" && ! test -h "./$file"; then clear_way "$file"; fi
    case $file in */*) to=${file%/*} ;; *) to=. ;; esac
    if test "$to" != "$at" || test "$#" -ge 100; then
        place "$@"
        set --
        at=$to
    fi
    set -- "$@" "$stage/files/$file"
done <"$new"
place "$@"
mv -f "$new" "$old"
find .provision -name 'in.*' -mtime +1 -prune -exec rm -rf {} + || :
