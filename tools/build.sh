#!/bin/bash
# Runs a make command and shows its progress: compiler commands done of their total.
#
#   tools/build.sh make -j2 all tests
#
# On a terminal one line is overwritten; elsewhere a line is printed every ten seconds. Warnings and
# errors of the compilers are printed in full. The exit status is make's.
set -u
total=$("$@" -n 2>/dev/null | grep -c -- ' -o ')
((total)) || exec "$@" -s
done=0 shown=$SECONDS status=0
show() {
    if [[ -t 1 ]]; then printf '\r\033[Kbuilding: %d of %d  %s' "$done" "$total" "$1"
    elif ((SECONDS - shown >= 10)); then printf 'building: %d of %d  %s\n' "$done" "$total" "$1"; shown=$SECONDS; fi
}
[[ -t 1 ]] || echo "building: $total commands"
while IFS= read -r line; do
    case $line in
        'status '*) status=${line#status } ;;
        *' -o '*)
            source=${line##* -c }
            [[ $source == "$line" ]] && source=${line##* -o }
            done=$((done < total ? done + 1 : total))
            show "${source%% *}"
            ;;
    esac
done < <("$@"; echo "status $?")
[[ ! -t 1 ]] || printf '\r\033[K'
((status == 0)) && echo "built in $SECONDS s"
exit "$status"
