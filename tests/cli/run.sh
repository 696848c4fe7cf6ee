#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs tests of the command line: run.sh [--record] PAGEDKV ST_TOOL [NAME ...]
# Each NAME.sh runs in an empty folder. Its stdout must equal NAME.stdout, its stderr NAME.stderr (no
# such file: nothing), its exit status must be 0; 77 means skipped. --record writes these files anew.
set -u

record=no
if [ "${1:-}" = --record ]; then
    record=yes
    shift
fi
if [ $# -lt 2 ]; then
    echo "usage: run.sh [--record] PAGEDKV ST_TOOL [NAME ...]" >&2
    exit 2
fi
tests=$(cd "$(dirname "$0")" && pwd)
PAGEDKV=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
ST_TOOL=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
TESTS=$tests
LC_ALL=C
export PAGEDKV ST_TOOL TESTS LC_ALL
unset PAGEDKV_CPU
shift 2
if [ $# -eq 0 ]; then
    for script in "$tests"/*.sh; do
        name=$(basename "$script" .sh)
        [ "$name" = run ] || [ "$name" = lib ] || set -- "$@" "$name"
    done
fi

scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
if [ -n "${PAGEDKV_EMULATOR:-}" ]; then
    mkdir "$scratch/bin"
    for program in "$PAGEDKV" "$ST_TOOL"; do
        wrapper=$scratch/bin/$(basename "$program")
        printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$PAGEDKV_EMULATOR" "$program" >"$wrapper"
        chmod +x "$wrapper"
    done
    PAGEDKV=$scratch/bin/$(basename "$PAGEDKV")
    ST_TOOL=$scratch/bin/$(basename "$ST_TOOL")
fi
passed=0
failed=0
skipped=0
for name; do
    [ -f "$tests/$name.sh" ] || { echo "run.sh: there is no test '$name'" >&2; exit 2; }
    mkdir "$scratch/$name"
    (cd "$scratch/$name" && sh "$tests/$name.sh") >"$scratch/stdout" 2>"$scratch/stderr"
    status=$?
    if [ $status -eq 77 ]; then
        echo "skipped: $name: $(cat "$scratch/stdout")"
        skipped=$((skipped + 1))
        continue
    fi
    if [ $record = yes ]; then
        cp "$scratch/stdout" "$tests/$name.stdout"
        rm -f "$tests/$name.stderr"
        [ ! -s "$scratch/stderr" ] || cp "$scratch/stderr" "$tests/$name.stderr"
    fi
    expected=$tests/$name.stderr
    [ -f "$expected" ] || expected=/dev/null
    if diff -u "$tests/$name.stdout" "$scratch/stdout" && diff -u "$expected" "$scratch/stderr" &&
        [ $status -eq 0 ]; then
        passed=$((passed + 1))
    else
        echo "FAILED: $name, exit status $status"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -gt 0 ] && exit 1
[ $passed -eq 0 ] && [ $skipped -gt 0 ] && exit 77
exit 0
