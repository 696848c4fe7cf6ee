#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What `make run` shows: the operators on the published matrix, checked bit for bit, a language model
# whose keys and values live in the paged cache, and real traffic replayed with real bytes. The last
# lines sum it up.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=build/release/tools/pagedkv/pagedkv
llama=build/release/examples/llama
data=${PAGEDKV_TEST_DATA:-../shared}/data
models=$data/models
trace=$data/traces/mooncake_conversation.jsonl
# A prompt whose continuation by llama2.c is known.
prompt='Once upon a time, there was a cat'
expected=$models/expected/greedy256_1.txt

if [ ! -x "$tool" ]; then
    echo "run: the command-line tool was not built: install libjansson-dev and run 'make run' again" >&2
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "\$ $tool verify"
"$tool" verify | tee "$scratch/verify"

echo
if [ -x "$llama" ] && [ -f "$models/stories260K.bin" ] && [ -f "$models/tok512.bin" ]; then
    echo "\$ $llama $models/stories260K.bin $models/tok512.bin --prompt '$prompt'"
    "$llama" "$models/stories260K.bin" "$models/tok512.bin" --prompt "$prompt" | tee "$scratch/text"
    words="$(wc -w <"$scratch/text") words by a language model whose keys and values lay in shuffled blocks"
    if cmp -s "$scratch/text" "$expected"; then
        words="$words, as llama2.c wrote them"
    fi
else
    words="no text: there is no model"
    echo "No model in $models. To see one write a text through the paged cache, put stories260K.bin"
    echo "and tok512.bin of karpathy/tinyllamas (Hugging Face, folder stories260K) there, or name the"
    echo "folder above data/models in PAGEDKV_TEST_DATA, and run 'make run' again."
fi

echo
if [ -f "$trace" ]; then
    source=$trace
    traffic="requests of real traffic"
else
    source=--synthetic
    traffic="made-up requests"
    echo "No trace in $data/traces: conversations are made up instead. To replay real traffic, put"
    echo "mooncake_conversation.jsonl of kvcache-ai/Mooncake (GitHub, FAST25-release/traces) there."
fi
echo "\$ $tool replay $source --data --limit 2000"
"$tool" replay "$source" --data --limit 2000 | tee "$scratch/replay"

rule() { printf '  %.*s\n' 96 "$1$dashes"; }
dashes=$(printf '%096d' 0 | tr 0 -)
echo
rule "-- pagedkv, ${SECONDS} seconds "
cat <<END
  check   $(grep -oE '^[0-9]+ of [0-9]+ cases exact to the bit( or within their bounds)?' "$scratch/verify"), $(grep -oE '[0-9.]+ GB of cache' "$scratch/verify") checked byte by byte
  read    $words
  manage  2,000 $traffic through 2,000 blocks: $(awk '$1 == "lru" { print $5 " " $6 }' "$scratch/replay") of the prompt tokens found,
          $(grep -oE '[0-9.]+ [KMGT]B read back and compared: every byte right' "$scratch/replay")
END
rule "--$dashes"
