# SPDX-License-Identifier: MIT
# scatter_rows: the three caches of an MLA token, forms of rows and caches, and refusals.
. "$TESTS/lib.sh"

echo "slot 130 is row 2 of block 1, in three caches of different width and dtype"
for index in I32 I64; do
    make_file in.st <<END
slot_mapping $index 2 130 -1
source_0 I8 2,1,4 1..8
cache_0 I8 2,128,1,4 0*1024
source_1 BF16 2,2 11..14
cache_1 BF16 2,128,1,2 0*512
source_2 F32 2,1 21 22
cache_2 F32 256,1 0*256
END
    run_both scatter_rows in.st | nonzero
done

echo "a row without heads takes those of the other side; the later of two tokens stays"
make_file in.st <<END
slot_mapping I64 3 5 0 5
source_0 U16 3,4 1..12
cache_0 U16 2,3,2,2 0*24
source_1 U8 3,2,2 1..12
cache_1 U8 6,4 0*24
END
run_both scatter_rows in.st
library_fails run scatter_rows in.st fails.out --duplicates reject

echo "nothing to do"
make_file empty.st <<END
slot_mapping I32 0
source_0 F16 0,2
cache_0 F16 1,1,2 7 8
END
run_both scatter_rows empty.st

echo "refusals"
make_file in.st <<END
slot_mapping I32 1 4
source_0 U8 1,2 1 2
cache_0 U8 2,2,2 0*8
END
library_fails run scatter_rows in.st fails.out
library_fails run scatter_rows in.st fails.out --run_mode sim
make_file in.st <<END
slot_mapping I32 1 3
source_0 U8 1,2 1 2
cache_0 U8 2,2,2 0*8
source_1 U8 1,2 1 2
cache_1 U8 4,1,2 0*8
END
library_fails run scatter_rows in.st fails.out
make_file in.st <<END
slot_mapping I32 1 3
source_0 U8 1,3 1 2 3
cache_0 U8 2,2,2 0*8
END
library_fails run scatter_rows in.st fails.out
make_file in.st <<END
slot_mapping I32 1 3
source_0 I8 1,2 1 2
cache_0 U8 2,2,2 0*8
END
library_fails run scatter_rows in.st fails.out
make_file in.st <<END
slot_mapping I32 1 3
source_0 U8 1,2 1 2
cache_0 U8 2,2,2 0*8
source_1 U8 1,2 1 2
END
fails run scatter_rows in.st fails.out
make_file in.st <<END
slot_mapping I32 1 3
source_0 U8 1,2 1 2
cache_0 U8 2,2,2 0*8
source_2 U8 1,2 1 2
cache_2 U8 2,2,2 0*8
END
fails run scatter_rows in.st fails.out
make_file in.st <<END
slot_mapping I32 1 3
source_0 U8 1,2 1 2
cache_0 U8 2,2,2 0*8
cache_16 U8 2,2,2 0*8
END
fails run scatter_rows in.st fails.out
