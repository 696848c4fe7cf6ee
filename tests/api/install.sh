#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# install.sh CMAKE BUILD_DIR CC SOURCE_DIR: installs into a temporary tree, moves it, and builds and runs
# examples/scatter_gather.c from there, through pkg-config and through find_package, with the shared and
# with the static library.
set -euo pipefail
cmake=$1 build=$2 cc=$3 source=$4
example=$source/examples/scatter_gather.c

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
DESTDIR=$work/staged "$cmake" --install "$build" --prefix /opt/pagedkv >/dev/null
mv "$work/staged/opt/pagedkv" "$work/moved"
libraries=$(dirname "$(find "$work/moved" -name libpagedkv.a)")

run() {
    echo "$1"
    LD_LIBRARY_PATH=$libraries "$2" >"$work/output" || { echo "$2 failed"; exit 1; }
}

for page in LICENSE NOTICE doc/prefix-key.md; do
    [ -f "$work/moved/share/doc/pagedkv/$page" ] || { echo "$page is not installed"; exit 1; }
done

if [ -x "$work/moved/bin/pagedkv" ]; then
    "$work/moved/bin/pagedkv" info >/dev/null
fi

"$cmake" -S "$source/tests/api/consumer" -B "$work/consumer" -DEXAMPLE="$example" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$work/moved" >/dev/null
"$cmake" --build "$work/consumer" >/dev/null
run "find_package, shared" "$work/consumer/shared"
run "find_package, static" "$work/consumer/static"

if ! command -v pkg-config >/dev/null; then
    echo "no pkg-config here: find_package only"
    exit 0
fi
export PKG_CONFIG_PATH=$libraries/pkgconfig
# pkg-config escapes what the shell would split: its flags are read as the shell reads a command.
build() { # PROGRAM, options of pkg-config for the libraries
    local flags=()
    eval "flags=($(pkg-config --cflags pagedkv))"
    eval "flags+=('$example' -o '$1' $(pkg-config "${@:2}" --libs pagedkv))"
    "$cc" -std=c11 "${flags[@]}"
}
build "$work/shared"
run "pkg-config, shared" "$work/shared"
# Below 1.0 a program asks for the minor version, too (see version.h).
soname=$(ldd "$work/shared" | grep -o 'libpagedkv\.so[0-9.]*' | head -n 1)
version=$(pkg-config --modversion pagedkv)
[ "${version%%.*}" = 0 ] && wanted=libpagedkv.so.${version%.*} || wanted=libpagedkv.so.${version%%.*}
[ "$soname" = "$wanted" ] || { echo "the soname is $soname, not $wanted"; exit 1; }
rm "$libraries"/libpagedkv.so*
build "$work/static" --static
run "pkg-config, static" "$work/static"
