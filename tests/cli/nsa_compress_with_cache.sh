# SPDX-License-Identifier: MIT
# nsa_compress_with_cache: the documented example, padding, both float types, and refusals.
. "$TESTS/lib.sh"

# Blocks of 16 tokens, one head of 2; block i + 1 of the table is block i. 0x3c00 is 1, 0x2800 1/32.
echo "windows of 32, stride 16: of lengths 31, 32, 40 and 48 the second and the fourth complete one"
make_file in.st <<END
input F16 4,16,1,2 0x3c00*128
weight F16 32,1 0x2800*32
slot_mapping I32 4 99 3 99 1
act_seq_len I64 4 31 32 40 48
block_table I32 4,3 0 1 -1 1 2 -1 0 1 -1 -1 3 2
output_cache F16 5,1,2 7*10
END
run_both nsa_compress_with_cache in.st --compress_block_size 32 --compress_stride 16 \
    --page_block_size 16
run_both nsa_compress_with_cache in.st
echo "stride 32: 48 is half a window late"
run_both nsa_compress_with_cache in.st --compress-stride 32

# 2 in the first block, 1 in the second; weights 1 and 2: 16 * 2 * 1 + 16 * 1 * 2 = 64, 0x4280 in bfloat16.
echo "two heads, weights that change with the token, bfloat16, and a sequence that is padding"
make_file in.st <<END
input BF16 2,16,2,1 0x4000*32 0x3f80*32
weight BF16 32,2 0x3f80*32 0x4000*32
slot_mapping I64 2 -1 0
act_seq_len I32 2 -5 32
block_table I64 2,2 7 7 0 1
output_cache BF16 1,2,1 7 7
END
run_both nsa_compress_with_cache in.st

echo "refusals"
refuse() {
    make_file in.st <<END
input F16 4,16,1,2 0x3c00*128
weight F16 32,1 0x2800*32
slot_mapping I32 2 $1
act_seq_len I64 2 $2
block_table I32 2,3 $3
output_cache F16 5,1,2 7*10
END
    shift 3
    library_fails run nsa_compress_with_cache in.st fails.out "$@"
}
refuse "0 5" "32 32" "0 1 2 0 1 2"
refuse "3 3" "32 48" "0 1 2 0 1 2"
refuse "0 1" "32 49" "0 1 2 0 1 2"
refuse "0 1" "32 -1" "0 1 2 0 1 2"
refuse "0 1" "32 48" "0 1 -1 -1 1 -1"
refuse "0 1" "32 48" "0 1 2 0 1 4"
refuse "0 1" "32 48" "0 1 2 0 1 2" --compress_block_size 16
refuse "0 1" "32 48" "0 1 2 0 1 2" --compress_stride 24
refuse "0 1" "32 48" "0 1 2 0 1 2" --compress_stride 48
refuse "0 1" "32 48" "0 1 2 0 1 2" --page_block_size 64
refuse "0 1" "32 48" "0 1 2 0 1 2" --run_mode sim --page_block_size 64
