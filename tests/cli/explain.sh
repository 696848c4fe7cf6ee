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

echo "a copy was timed"
"$PAGEDKV" explain scatter_pa_kv_cache --num_tokens 8 | grep -cE '^copy .* GB/s|^time .* us '

echo "refusals"
fails explain
fails explain copy_blocks
fails explain scatter_pa_kv_cache --dtype f99
fails explain scatter_pa_kv_cache --num_tokens -1
fails explain scatter_pa_kv_cache --run_mode npu
fails explain scatter_pa_kv_cache --cache_mode PA_NZ --head_size 8
fails explain scatter_pa_kv_cache --num_blocks 1073741824 --block_size 1073741824
library_fails explain scatter_pa_kv_cache --cache_mode PA_NZ --key_only

echo "info"
"$PAGEDKV" info | cut -c1-16 | sed 's/ *$//'
"$PAGEDKV" info --json | tr ',{' '\n\n' | grep -oE '^"[a-z0-9_]+":'
PAGEDKV_CPU=c "$PAGEDKV" info | grep 'in use'
fails info now
fails info --cpu mmx
