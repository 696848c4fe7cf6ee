#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Configures and builds one preset of CMakePresets.json.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
command -v cmake >/dev/null || { echo "build: cmake is missing: install cmake 3.22 or newer" >&2; exit 1; }
generator=Ninja
command -v ninja >/dev/null || generator='Unix Makefiles'

echo "build: $preset"
cmake --preset "$preset" -G "$generator" --log-level=WARNING
cmake --build --preset "$preset" -j "$(nproc)"
