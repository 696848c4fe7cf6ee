#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What `make run` shows: the operators on the published matrix, checked bit for bit, and a language
# model whose keys and values live in the paged cache.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=build/release/tools/pagedkv/pagedkv
llama=build/release/examples/llama
models=${PAGEDKV_TEST_DATA:-../shared}/data/models

if [ ! -x "$tool" ]; then
    echo "run: the command-line tool was not built: install libjansson-dev and run 'make run' again" >&2
    exit 1
fi
echo "\$ $tool verify"
"$tool" verify

echo
if [ -f "$models/stories260K.bin" ] && [ -f "$models/tok512.bin" ]; then
    echo "\$ $llama $models/stories260K.bin $models/tok512.bin --prompt 'Once upon a time'"
    "$llama" "$models/stories260K.bin" "$models/tok512.bin" --prompt 'Once upon a time'
else
    echo "No model in $models. To see one write a text through the paged cache, put stories260K.bin"
    echo "and tok512.bin of karpathy/tinyllamas (Hugging Face, folder stories260K) there, or name the"
    echo "folder above data/models in PAGEDKV_TEST_DATA, and run 'make run' again."
fi
