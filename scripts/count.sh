#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# count.sh [NAME ...]: sums the results of the named suites, or of all, in one line. Fails if any
# test failed or none ran.
set -euo pipefail
cd "$(dirname "$0")/.."

results=()
for name in "${@:-*}"; do
    # shellcheck disable=SC2206 # the default is a pattern
    results+=(build/results/$name.count)
done
cat "${results[@]}" | awk '
    { passed += $1; failed += $2; skipped += $3 }
    END {
        printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
        exit failed > 0 || passed == 0
    }'
