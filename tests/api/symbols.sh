#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# symbols.sh NM SHARED STATIC SOURCE_DIR: the symbols that the headers declare with PKV_API, the list
# in src/pagedkv.map and what the shared library exports are the same set. Internal names of the
# static library begin with pkv_ as well, because a static library hides nothing.
set -euo pipefail
export LC_ALL=C
nm=$1 shared=$2 static=$3 source=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The name before the bracket of each declaration: comments and directives go first.
cat "$source"/include/pagedkv/*.h | grep -v '^ *#' | tr '\n' ' ' | sed -E 's:/\*([^*]|\*+[^*/])*\*+/: :g' |
    grep -oE 'PKV_API[^;{]*[;{]' | sed -E 's/^PKV_API[^(]*\b(pkv_[a-z0-9_]+) *\(.*/\1/' | sort >"$work/headers"
sed -n '/^global:/,/^local:/s/^ *\([a-z0-9_]*\);$/\1/p' "$source/src/pagedkv.map" | sort >"$work/map"
"$nm" -D --defined-only "$shared" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' |
    sort >"$work/exported"
"$nm" -g --defined-only "$static" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$work/static"

status=0
same() {
    if ! diff "$work/$1" "$work/$2" >"$work/diff"; then
        echo "only in $1 (<) or only in $2 (>):"
        grep '^[<>]' "$work/diff"
        status=1
    fi
}
same headers map
same map exported
# The address sanitizer adds a marker of its own for each variable.
sed -i '/^__odr_asan\./d' "$work/static"
if grep -v '^pkv_' "$work/exported" "$work/static"; then
    echo "these symbols do not begin with pkv_"
    status=1
fi
echo "$(wc -l <"$work/headers") declared, $(wc -l <"$work/exported") exported"
[ -s "$work/headers" ] || status=1
exit "$status"
