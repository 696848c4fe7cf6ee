# SPDX-License-Identifier: MIT
# swap_blocks and fill_blocks.
. "$TESTS/lib.sh"

echo "swap_blocks: block 2 to block 0 and to block 1 of another cache, block 0 to block 4"
for index in I32 I64; do
    make_file in.st <<END
key_cache U8 3,2,1,2 1..12
value_cache U8 3,2,1,1 101..106
dst_key_cache U8 5,2,1,2 0*20
dst_value_cache U8 5,2,1,1 0*10
block_mapping $index 3,2 2 0 2 1 0 4
END
    run_both swap_blocks in.st
done
make_file in.st <<END
key_cache U8 3,2,1,2 1..12
dst_key_cache U8 3,2,1,2 0*12
block_mapping I32 1,2 1 1
END
run_both swap_blocks in.st
make_file in.st <<END
key_cache U8 3,2,1,2 1..12
dst_key_cache U8 3,2,1,2 0*12
block_mapping I32 2,2 1 1 0 1
END
library_fails run swap_blocks in.st fails.out
make_file in.st <<END
key_cache U8 3,2,1,2 1..12
dst_key_cache U8 2,2,1,2 0*8
block_mapping I32 1,2 1 2
END
library_fails run swap_blocks in.st fails.out
make_file in.st <<END
key_cache U8 3,2,1,2 1..12
dst_key_cache U8 3,1,1,2 0*6
block_mapping I32 1,2 1 1
END
library_fails run swap_blocks in.st fails.out

echo "fill_blocks: NaN of bfloat16 and of float32 from block 1 on"
make_file in.st <<END
key_cache BF16 3,2,1,1 1..6
value_cache F32 3,2,1,1 11..16
END
run_both fill_blocks in.st --value 0x7fc0,0x7fc00000 --first 1
run_both fill_blocks in.st --value 9 --first 1 --num 1
run_both fill_blocks in.st --value 010 --first 1 --num 1
run_both fill_blocks in.st
library_fails run fill_blocks in.st fails.out --first 2 --num 2
library_fails run fill_blocks in.st fails.out --first 4
fails run fill_blocks in.st fails.out --value 0x10000
fails run fill_blocks in.st fails.out --value nan
fails run fill_blocks in.st fails.out --value 1,2,3
