#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# ctest.sh PRESET [ctest options]: runs the tests of one built preset and notes, in
# build/results/PRESET.count and in its last line, how many passed, failed and were skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
mkdir -p build/results
result=build/results/$preset.count
report=$PWD/build/results/$preset.xml
rm -f "$result" "$report"
PAGEDKV_TEST_DATA=$(realpath -m "${PAGEDKV_TEST_DATA:-../shared}")
export PAGEDKV_TEST_DATA

status=0
ctest --preset "$preset" --no-tests=error --output-junit "$report" "$@" || status=$?

# The attributes of the report's first element: tests counts all of them.
number() { grep -m 1 -oE "\b$1=\"[0-9]+\"" "$report" | tr -dc 0-9; }
if [ -s "$report" ]; then
    # A program that is not there was not run, which the report calls skipped and is a failure.
    absent=$(grep -c 'message="Unable to find executable' "$report" || true)
    failed=$(($(number failures) + absent))
    skipped=$(($(number skipped) + $(number disabled) - absent))
    echo "$(($(number tests) - failed - skipped)) $failed $skipped" >"$result"
    # Why a test was skipped, in its own words: the first line of what it printed.
    awk -F '[<>"]' '/<testcase / { name = $3; skipped = /status="notrun"/ }
        skipped && /<system-out>/ { print name ": " $3 }' "$report"
else
    echo "0 1 0" >"$result"
fi
scripts/count.sh "$preset" || status=1
exit "$status"
