#!/bin/sh
# SPDX-License-Identifier: MIT
#
# test_paged_attention.sh PAGED_ATTENTION: it prints what doc/paged-attention-by-hand.md says.
# PAGEDKV_EMULATOR is what a binary for another processor is run with.
set -u

page=$(dirname "$0")/../doc/paged-attention-by-hand.md
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

awk '/^```text$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$page" >"$work/expected"
# shellcheck disable=SC2086 # the emulator may have arguments
${PAGEDKV_EMULATOR:-} "$1" >"$work/out" || exit 1
[ -s "$work/expected" ] && diff -u "$work/expected" "$work/out"
