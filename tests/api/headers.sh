#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# headers.sh CC CXX INCLUDE_DIR: every public header compiles alone, as C11 and as C++17, without a
# warning. An adapter whose library is not installed is left out; so is C++ without a compiler.
set -uo pipefail
cc=$1 cxx=$2 include=$3
flags=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$include")

# The headers of other libraries that a header includes and that this compiler cannot find.
missing() {
    grep -ohE '^ *# *include <[^>]+>' "$1" | grep -v '<pagedkv/' | while read -r line; do
        echo "$line" | "$cc" -E -x c - >/dev/null 2>&1 || echo "${line##*include }"
    done
}

failed=0 num_headers=0
for path in "$include"/pagedkv/*.h; do
    header=pagedkv/$(basename "$path")
    absent=$(missing "$path")
    if [ -n "$absent" ]; then
        echo "$header: left out, $absent is not installed"
        continue
    fi
    num_headers=$((num_headers + 1))
    extra=()
    case $header in *openmp*) extra=(-fopenmp) ;; esac
    echo "#include <$header>" | "$cc" -std=c11 -x c "${flags[@]}" "${extra[@]}" - ||
        { echo "$header does not compile alone as C11"; failed=1; }
    [ -x "$cxx" ] || continue
    echo "#include <$header>" | "$cxx" -std=c++17 -x c++ "${flags[@]}" "${extra[@]}" - ||
        { echo "$header does not compile alone as C++17"; failed=1; }
done
[ -x "$cxx" ] || echo "no C++ compiler here: C++17 was not tried"
echo "$num_headers headers tried"
[ "$num_headers" -gt 0 ] || failed=1
exit "$failed"
