#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The long tests, stage by stage: another compiler, sanitizers, other processors, other
# implementations. A stage that fails does not hide the next one; a stage whose tools are missing is
# skipped and says so. The last line counts all tests of all stages.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

stages=(clang asan tsan aarch64 haswell nehalem oracle)

# note NAME PASSED FAILED SKIPPED
note() { mkdir -p build/results && echo "$2 $3 $4" >"build/results/$1.count"; }

# needs COMMAND ...: whether all are there; else says which is not.
needs() {
    local command
    for command in "$@"; do
        command -v "$command" >/dev/null || { reason="$command is not installed"; return 1; }
    done
}

# preset NAME [ctest options]: builds and tests; a build that fails counts as one failed test.
preset() {
    scripts/build.sh "$1" || { note "$1" 0 1 0; return 1; }
    scripts/ctest.sh "$@"
}

stage_clang() { needs clang || return 77; preset clang; }

# The preset also asks for more fuzz mutations.
stage_asan() { preset asan; }

# The suites that use threads.
stage_tsan() { preset tsan -R '^unit|^stress|engine_step'; }

stage_aarch64() { needs aarch64-linux-gnu-gcc qemu-aarch64 || return 77; preset aarch64; }

stage_haswell() { needs qemu-x86_64 || return 77; preset haswell -R '^checkkern|^unit'; }

# Its one level is C, which the release build tests in full; here the long grids of attention would take minutes.
stage_nehalem() {
    needs qemu-x86_64 || return 77
    preset nehalem -R '^checkkern|^unit' -E 'paged_attention_(grid|stable)'
}

# Each oracle is a Python program that runs the tool in PAGEDKV and compares: 0 ok, 1 failed, 77 skipped.
stage_oracle() {
    local python='' modules candidate script passed=0 failed=0 skipped=0
    for modules in 'numpy, torch' numpy; do
        for candidate in python3 /usr/bin/python3; do
            "$candidate" -c "import $modules" 2>/dev/null && python=$candidate && break 2
        done
    done
    [ -n "$python" ] || { reason='no python3 with numpy'; return 77; }
    scripts/build.sh release || { note oracle 0 1 0; return 1; }
    export PAGEDKV=$PWD/build/release/tools/pagedkv/pagedkv
    for script in tests/oracle/oracle_*.py; do
        echo "oracle: $script"
        "$python" "$script"
        case $? in
        0) passed=$((passed + 1)) ;;
        77) skipped=$((skipped + 1)) ;;
        *) failed=$((failed + 1)); echo "oracle: $script failed" ;;
        esac
    done
    note oracle "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
}

summary=()
for stage in "${stages[@]}"; do
    rm -f "build/results/$stage.count"
    echo
    echo "== $stage"
    started=$SECONDS
    reason=
    "stage_$stage"
    case $? in
    0) verdict=passed ;;
    77) verdict="skipped: $reason"; note "$stage" 0 0 1 ;;
    *) verdict=FAILED ;;
    esac
    summary+=("$(printf '%-8s %5d s  %s' "$stage" $((SECONDS - started)) "$verdict")")
    echo "== ${summary[-1]}"
done

echo
printf '%s\n' "${summary[@]}"
scripts/count.sh "${stages[@]}"
