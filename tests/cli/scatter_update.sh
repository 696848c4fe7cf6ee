# SPDX-License-Identifier: MIT
# scatter_update: the documented examples, negative entries, every index type, and refusals.
. "$TESTS/lib.sh"

echo "two dimensions"
for index in I16 I32 I64; do
    make_file in.st <<END
input F32 8,3 0*24
index $index 2,2 1 2 4 5
src F32 4,3 1..12
END
    run_both scatter_update in.st
done

echo "two dimensions in a wrapper"
make_file in.st <<END
input I16 1,4,2 0*8
index I32 1,2 3 0
src I16 1,2,2 1..4
END
run_both scatter_update in.st --dim -2

echo "four dimensions"
make_file in.st <<END
input BF16 2,6,1,3 0*36
index I64 2,2 1 8 4 10
src BF16 2,2,1,3 1..12
END
run_both scatter_update in.st

echo "a negative entry skips its row, and the later of two rows stays"
make_file in.st <<END
input I32 6,2 0*12
index I32 2,2 4 -1 0 4
src I32 4,2 11 12 21 22 31 32 41 42
END
run_both scatter_update in.st
library_fails run scatter_update in.st fails.out --duplicates reject

echo "nothing to do"
make_file empty.st <<END
input F32 2,2 1..4
index I32 0,3
src F32 0,2
END
run_both scatter_update empty.st

echo "refusals"
library_fails run scatter_update in.st fails.out --dim -1
make_file in.st <<END
input I32 6,2 0*12
index I32 1,2 5 6
src I32 2,2 1..4
END
library_fails run scatter_update in.st fails.out
library_fails run scatter_update in.st fails.out --run_mode sim
make_file in.st <<END
input I32 6,2 0*12
index I32 1,2 5 4
src I32 2,3 1..6
END
library_fails run scatter_update in.st fails.out
make_file in.st <<END
input I32 6,2 0*12
index I32 1,2 5 4
src F32 2,2 1..4
END
library_fails run scatter_update in.st fails.out
