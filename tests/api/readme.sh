#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# readme.sh SOURCE_DIR: README's first C block is examples/scatter_gather.c, which the tests compile and
# run, word for word.
set -euo pipefail
readme=$1/README.md example=$1/examples/scatter_gather.c

awk '/^```c$/ { inside = 1; next } inside && /^```$/ { exit } inside' "$readme" |
    diff -u "$example" - || { echo "README.md differs from examples/scatter_gather.c"; exit 1; }
