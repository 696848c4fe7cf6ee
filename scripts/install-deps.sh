#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the packages that are missing: `base` for building and testing, `all` for the long tests as
# well. Where that is not possible it prints their names and succeeds: the build then says what it
# cannot do without.
set -euo pipefail

base=(gcc make cmake ninja-build pkg-config libc6-dev libxxhash-dev libcmocka-dev
      libjansson-dev)
long=(g++ clang libclang-rt-dev qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
      libdlpack-dev libpthreadpool-dev python3 python3-numpy python3-torch)

case "${1:-base}" in
base) wanted=("${base[@]}") ;;
all) wanted=("${base[@]}" "${long[@]}") ;;
*) echo "install-deps: unknown set '$1': base or all" >&2; exit 2 ;;
esac

say() { echo "install-deps: $*"; }

missing=("${wanted[@]}")
if command -v dpkg-query >/dev/null; then
    missing=()
    for package in "${wanted[@]}"; do
        dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^.i' ||
            missing+=("$package")
    done
fi
[ "${#missing[@]}" -gt 0 ] || { say "nothing is missing"; exit 0; }

as_root=()
if ! command -v apt-get >/dev/null; then
    say "no apt-get here; going on without these Debian packages: ${missing[*]}"
    exit 0
elif [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        say "not root; going on without these packages: ${missing[*]}"
        exit 0
    fi
    as_root=(sudo -n)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt_get() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; return 1; }
}

apt_get update || say "the package lists could not be refreshed; trying with the old ones"
known=()
for package in "${missing[@]}"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
        known+=("$package")
    else
        say "this system has no package $package; going on without it"
    fi
done
[ "${#known[@]}" -gt 0 ] || exit 0
say "installing ${known[*]}"
apt_get install --no-install-recommends "${known[@]}" ||
    say "the installation failed; going on without: ${known[*]}"
