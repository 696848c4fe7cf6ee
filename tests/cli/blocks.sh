# SPDX-License-Identifier: MIT
# copy_blocks, convert_layout and both forms of slot_mapping.
. "$TESTS/lib.sh"

echo "copy_blocks: 0 to 2 and to 1"
for index in I32 I64; do
    make_file in.st <<END
key_cache U8 4,2,1,2 1..16
value_cache U8 4,2,1,1 101..108
block_mapping $index 2,2 0 2 0 1
END
    run_both copy_blocks in.st
done
make_file in.st <<END
key_cache U8 4,2,1,2 1..16
block_mapping I32 2,2 0 2 2 1
END
library_fails run copy_blocks in.st fails.out
make_file in.st <<END
key_cache U8 4,2,1,2 1..16
block_mapping I32 1,2 0 4
END
library_fails run copy_blocks in.st fails.out

echo "convert_layout: 2 tokens, 2 heads of 8; the value is the feature, plus 16 for the second token"
make_file NHD.st <<END
cache I32 1,2,2,8 0..31
END
for to in NHD HND PA_NZ X_PACKED TRANSPOSED; do
    run_both convert_layout NHD.st --from NHD --to $to
    "$PAGEDKV" run convert_layout NHD.st $to.st --from NHD --to $to
done
for from in NHD HND PA_NZ X_PACKED TRANSPOSED; do
    for to in NHD HND PA_NZ X_PACKED TRANSPOSED; do
        "$PAGEDKV" run convert_layout $from.st out.st --from $from --to $to --num_kv_heads 2 \
            --block_size 2
        cmp out.st $to.st
    done
done
make_file NZ5.st <<END
cache I32 1,2,1,2,8 0..7 16..23 8..15 24..31
END
"$PAGEDKV" run convert_layout NZ5.st out.st --from PA_NZ --to NHD
cmp out.st NHD.st
fails run convert_layout PA_NZ.st fails.out --from PA_NZ --to NHD
fails run convert_layout NHD.st fails.out --to HND
fails run convert_layout NHD.st fails.out --from NHD --to HND --block_size 4
library_fails run convert_layout NHD.st fails.out --from NHD --to HND --num_kv_heads 4
library_fails run convert_layout NHD.st fails.out --from X_PACKED --to HND
make_file odd.st <<END
cache I32 1,2,2,3 0..11
END
fails run convert_layout odd.st fails.out --from NHD --to PA_NZ

echo "slot_mapping: position 130 is token 2 of block 3"
make_file in.st <<END
block_table I32 1,2 7 3
positions I32 4 130 0 -1 127
END
run_both slot_mapping in.st --block_size 128
make_file in.st <<END
block_table I64 2,2 7 3 5 -1
positions I64 3 0 5 3
seq_ids I64 3 1 0 1
END
run_both slot_mapping in.st --block-size=4
make_file in.st <<END
batch_indices I32 4 0 1 1 0
positions I32 4 2 0 4 -1
kv_indices I32 4 9 3 8 1
kv_indptr I32 3 0 1 3
kv_last_page_len I32 2 3 1
END
run_both slot_mapping in.st --block_size 4
fails run slot_mapping in.st fails.out
library_fails run slot_mapping in.st fails.out --block_size 2
make_file in.st <<END
block_table I32 1,2 7 3
positions I32 1 8
END
library_fails run slot_mapping in.st fails.out --block_size 4
make_file in.st <<END
block_table I32 1,2 7 3
positions I32 1 0
kv_indptr I32 2 0 1
END
fails run slot_mapping in.st fails.out --block_size 4
