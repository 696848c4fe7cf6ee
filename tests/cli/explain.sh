# SPDX-License-Identifier: MIT
# explain and info: the facts that are the same on every machine.
. "$TESTS/lib.sh"

facts() { "$PAGEDKV" explain "$@" | grep -E '^(operator|cache|key|value|tiles|tile|bytes) '; }

echo "the published case: tiles of 32 rows of 2 x 1024 bytes and an index in sim"
facts scatter_pa_kv_cache --run_mode sim | sed 's/, kernel .*//'
echo "a tail of 6"
facts scatter_pa_kv_cache --run_mode sim --num_tokens 70 --num_blocks 4 --key_only | sed 's/, kernel .*//'
echo "published modes, heads of two sizes"
facts gather_pa_kv_cache --run_mode sim --cache-mode PA_NZ --num-tokens 5 --head_size 128 \
    --value_head_size 64 --dtype i8 | sed 's/, kernel .*//'

attention() {
    "$PAGEDKV" explain paged_attention "$@" | grep -E '^(operator|cache|key|value|queries|tiles|tile|parts|bytes|flops) ' |
        sed 's/, kernel .*//'
}

echo "attention: 8 sequences of 4096 tokens of 4096 bytes, 16 tiles each"
attention --num_heads 32 --num_kv_heads 8 --head_size 128
echo "values within keys; 300 queries of 16 rows are 38 units, which see 8 to 300 tokens"
attention --num_heads 16 --num_kv_heads 1 --head_size 576 --value_head_size 512 --key_only \
    --num_seqs 1 --seq_len 300 --query_len 300
echo "sim: 4 + 5 tokens for each of 4 heads of 2 sequences"
attention --run_mode sim --num_heads 4 --num_seqs 2 --seq_len 5 --query_len 2
"$PAGEDKV" explain paged_attention --cpu c | grep -o 'kernel .*'
"$PAGEDKV" explain paged_attention --threads 2 --num_seqs 1 --seq-len 300 | grep -c '^parts .* cut into 2$'

echo "a copy was timed"
"$PAGEDKV" explain scatter_pa_kv_cache --num_tokens 8 | grep -cE '^copy .* GB/s|^time .* us '
"$PAGEDKV" explain paged_attention --seq_len 8 | grep -cE '^copy .* GB/s|^time .* us '

echo "refusals"
fails explain
fails explain copy_blocks
fails explain scatter_pa_kv_cache --dtype f99
fails explain scatter_pa_kv_cache --num_tokens -1
fails explain scatter_pa_kv_cache --run_mode npu
fails explain scatter_pa_kv_cache --cache_mode PA_NZ --head_size 8
fails explain scatter_pa_kv_cache --num_blocks 1073741824 --block_size 1073741824
library_fails explain scatter_pa_kv_cache --cache_mode PA_NZ --key_only
fails explain paged_attention --num_seqs 0
fails explain paged_attention --num_seqs 65536 --seq_len 1073741824
library_fails explain paged_attention --seq_len 10 --query_len 11
library_fails explain paged_attention --num_heads 3
library_fails explain paged_attention --dtype i8
library_fails explain paged_attention --num_heads 1000000000 --query_len 4096

echo "info"
"$PAGEDKV" info | cut -c1-16 | sed 's/ *$//'
"$PAGEDKV" info --json | tr ',{' '\n\n' | grep -oE '^"[a-z0-9_]+":'
PAGEDKV_CPU=c "$PAGEDKV" info | grep 'in use'
fails info now
fails info --cpu mmx
