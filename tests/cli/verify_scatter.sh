# SPDX-License-Identifier: MIT
# verify: the published cases of other layouts, dtypes and shapes, without their times.
. "$TESTS/lib.sh"

cases="nz_unit_i32 nz_unit_i64 mla_nd_950 key_only_f16 key_only_bf16 key_only_i8 key_only_small
key_only_refused aclnn_example"
for mode in native sim; do
    echo "$mode"
    "$PAGEDKV" verify --threads 2 --run_mode $mode $cases >out.txt
    echo "exit $?"
    sed -n 's/^\(\[PRECISION_[A-Z]*\]\) *\([a-z0-9_]*\) .*/\1 \2/p' out.txt
done
fails verify no_such_case

echo "the beginning of names, with and without the published prefix"
for name in gym scatter_pa_kv_cache::test_gym; do
    "$PAGEDKV" verify $name --num_blocks 40 |
        sed -n 's/^\(\[PRECISION_[A-Z]*\]\) *\([a-z0-9_]*\) .*/\1 \2/p'
done
fails verify gy
fails verify scatter_pa_kv_cache::test_
fails verify scatter_pa_kv_cache::test_attention
