#!/bin/sh
# SPDX-License-Identifier: MIT
#
# test_llama.sh LLAMA: hostile files and options are refused with a sentence and status 2, and the
# texts of a real model come out byte for byte, wherever its blocks lie. Exits 77 without the model.
# PAGEDKV_EMULATOR is what a binary for another processor is run with.
set -u

binary=$1
data=${PAGEDKV_TEST_DATA:-$(dirname "$0")/../../shared}/data/models
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
num_failed=0

llama() {
    # shellcheck disable=SC2086 # the emulator may have arguments
    ${PAGEDKV_EMULATOR:-} "$binary" "$@"
}

fail() {
    echo "FAILED: $*"
    num_failed=$((num_failed + 1))
}

# Each number as a little-endian int32.
int32() {
    for number; do
        for shift in 0 8 16 24; do
            printf '%b' "\\0$(printf %03o $((number >> shift & 255)))"
        done
    done
}

# refused WORD ARGUMENT ...: status 2, nothing on stdout, one line on stderr with WORD in it.
refused() {
    word=$1
    shift
    llama "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ $status -eq 2 ] || fail "status $status instead of 2: llama $*"
    [ ! -s "$work/out" ] || fail "stdout is not empty: llama $*"
    grep -q "^llama: .*$word" "$work/err" || fail "no \"$word\" in \"$(cat "$work/err")\": llama $*"
}

# The smallest model: dim 2, hidden_dim 1, 1 layer, 1 head, 1 key/value head, vocabulary 3, context
# 2. All 38 weights are zero, so every logit is, and token 0 is always the greedy choice.
zeros() { head -c "$1" /dev/zero; }
{ int32 2 1 1 1 1 3 2; zeros 152; } >"$work/model"
{ int32 1; for piece in a b c; do int32 0 1; printf %s $piece; done; } >"$work/pieces"
text=$(llama "$work/model" "$work/pieces" --steps 2 --block_size 1 --seed 1) || fail "tiny model"
[ "$text" = aa ] || fail "the tiny model says \"$text\" instead of \"aa\""

# Checkpoints.
refused "cannot open" "$work/none" "$work/pieces"
refused "not a regular file" "$work" "$work/pieces"
: >"$work/bad"
refused "dim needs 4 bytes" "$work/bad" "$work/pieces"
int32 2 1 1 >"$work/bad"
refused "n_heads needs 4 bytes" "$work/bad" "$work/pieces"
bad_header() {
    word=$1
    shift
    { int32 "$@"; zeros 152; } >"$work/bad"
    refused "$word" "$work/bad" "$work/pieces"
}
max=2147483647
bad_header "dim is 0, must be 1 or more" 0 1 1 1 1 3 2
bad_header "hidden_dim is -1" 2 -1 1 1 1 3 2
bad_header "n_kv_heads is -2147483648" 2 1 1 1 -2147483648 3 2
bad_header "vocab_size is 0" 2 1 1 1 1 0 2
bad_header "multiple of n_heads 3" 2 1 1 3 1 3 2
bad_header "multiple of n_kv_heads 2" 2 1 1 1 2 3 2
bad_header "multiple of the rotary pair 2" 1 1 1 1 1 3 2
bad_header "the token embedding needs" 2 1 1 1 1 -2147483648 2
bad_header "the token embedding needs" 2147483646 $max $max 1 1 $max $max
bad_header "rms_att needs" 2 1 $max 1 1 3 2
bad_header "w1 needs" 2 $max 1 1 1 3 2
bad_header "the rotary tables needs" 2 1 1 1 1 3 $max
bad_header "the classifier needs" 2 1 1 1 1 -3 2
{ int32 2 1 1 1 1 3 2; zeros 151; } >"$work/bad"
refused "the rotary tables needs" "$work/bad" "$work/pieces"
{ int32 2 1 1 1 1 3 2; zeros 153; } >"$work/bad"
refused "1 bytes too long" "$work/bad" "$work/pieces"

# Tokenizers.
bad_pieces() {
    refused "$1" "$work/model" "$work/bad"
}
: >"$work/bad"
bad_pieces "max_token_length needs 4 bytes"
int32 1 0 >"$work/bad"
bad_pieces "the length of a piece needs 4 bytes"
int32 1 0 -1 0 1 >"$work/bad"
bad_pieces "piece 0 is -1 bytes long"
int32 1 0 $max 0 1 >"$work/bad"
bad_pieces "a piece needs 2147483647 bytes"
{ cat "$work/pieces"; int32 0; } >"$work/bad"
bad_pieces "4 bytes too long"

# Options.
refused usage "$work/model"
refused usage "$work/model" "$work/pieces" extra
refused usage "$work/model" "$work/pieces" --pages
refused '"-1", must be a whole number' "$work/model" "$work/pieces" --steps -1
refused '"2x", must be a whole number' "$work/model" "$work/pieces" --steps 2x
refused 'must be a whole number' "$work/model" "$work/pieces" --steps 99999999999999999999
refused 'must be a whole number from 1' "$work/model" "$work/pieces" --block_size 0
refused 'must be a whole number' "$work/model" "$work/pieces" --seed ""
refused "no piece for byte 0x20" "$work/model" "$work/pieces" --prompt a
refused "cannot fit the model's context of 2 tokens" "$work/model" "$work/pieces" --prompt aaaa

if [ $num_failed -ne 0 ]; then
    exit 1
fi
if [ ! -f "$data/stories260K.bin" ]; then
    echo "skipped: no model at $data (set PAGEDKV_TEST_DATA); the checks without it passed"
    exit 77
fi

model=$data/stories260K.bin
pieces=$data/tok512.bin
tab=$(printf '\t')
num_texts=0
while IFS=$tab read -r file prompt; do
    for block_size in 1 7 16 128; do
        for seed in 1 2; do
            llama "$model" "$pieces" --prompt "$prompt" --block_size $block_size --seed $seed \
                >"$work/out"
            cmp "$work/out" "$data/expected/$file" ||
                fail "$file, block size $block_size, seed $seed"
            num_texts=$((num_texts + 1))
        done
    done
done <"$data/expected/prompts.tsv"
[ $num_texts -gt 0 ] || fail "no prompts in $data/expected/prompts.tsv"

# 0 steps, and more than the context, both mean the whole context.
llama "$model" "$pieces" --steps 0 >"$work/all"
llama "$model" "$pieces" --steps 100000 >"$work/out"
cmp "$work/out" "$work/all" || fail "--steps 0 and --steps 100000 differ"

for bytes in 20 28 1000 1056539; do
    head -c $bytes "$model" >"$work/bad"
    refused "needs" "$work/bad" "$pieces"
done
for bytes in 3 4000 6226; do
    head -c $bytes "$pieces" >"$work/bad"
    refused "needs" "$model" "$work/bad"
done

echo "$num_texts texts compared, $num_failed failures"
[ $num_failed -eq 0 ]
