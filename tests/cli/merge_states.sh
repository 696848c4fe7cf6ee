# SPDX-License-Identifier: MIT
# merge_states: weights by log-sum-exp, states that do not count, bases, and refusals.
. "$TESTS/lib.sh"

# In F16 0x3c00 is 1, 0x4200 3, 0x4500 5, 0x7e00 NaN; in F32 0x3f800000 is 1, 0xff800000 minus infinity.
echo "a state whose weight underflows hides what it holds"
make_file in.st <<END
out_0 F32 1,1,2 0x7fc00000 0x7f800000
lse_0 F32 1,1 0
out_1 F32 1,1,2 0x40000000*2
lse_1 F32 1,1 0x447a0000
END
run_both merge_states in.st | floats

echo "equal weights; one state that does not count; none that counts"
make_file in.st <<END
out_0 F16 3,1,2 0x3c00*2 0x3c00*2 0x7e00*2
lse_0 F32 3,1 0 0 0xff800000
out_1 F16 3,1,2 0x4200 0x4500 0x7e00*2 0x7e00*2
lse_1 F32 3,1 0 0xff800000 0xff800000
END
run_both merge_states in.st | floats
run_both merge_states in.st --lse_base 2 | floats

# 2^3 + 2^3 + 2^4 = 2^5: weights of 1/4, 1/4 and 1/2 for 4, 8 and 2.
echo "three states of different dtypes, base 2"
make_file in.st <<END
out_0 F32 1,1,1 0x40800000
lse_0 F32 1,1 0x40400000
out_1 BF16 1,1,1 0x4100
lse_1 F32 1,1 0x40400000
out_2 F16 1,1,1 0x4000
lse_2 F32 1,1 0x40800000
END
run_both merge_states in.st --lse-base=2 | floats

echo "one state is its own result; no tokens"
make_file in.st <<END
out_0 BF16 1,2,1 0x3f80 0x4000
lse_0 F32 1,2 0x3f800000 0x40000000
END
run_both merge_states in.st | floats
make_file in.st <<END
out_0 BF16 0,2,1
lse_0 F32 0,2
END
run_both merge_states in.st

echo "the parts of paged_attention, merged"
make_file whole.st <<END
query F32 1,1,1 0
key_cache F32 2,2,1,1 0*4
value_cache F32 2,2,1,1 0x3f800000 0x40000000 0x40400000 0x40800000
block_table I32 1,2 0 1
seq_lens I32 1 4
query_start_loc I32 2 0 1
END
"$PAGEDKV" run paged_attention whole.st out.st && "$ST_TOOL" dump out.st | floats
make_part() {
    make_file part.st <<END
query F32 1,1,1 0
key_cache F32 2,2,1,1 0*4
value_cache F32 2,2,1,1 0x3f800000 0x40000000 0x40400000 0x40800000
block_table I32 1,1 $1
seq_lens I32 1 2
query_start_loc I32 2 0 1
END
    "$PAGEDKV" run paged_attention part.st part.out
    "$ST_TOOL" dump part.out | sed "s/^\([a-z]*\) /\1_$1 /"
}
(make_part 0 && make_part 1) | make_file in.st
run_both merge_states in.st | floats

echo "refusals"
refuse() {
    make_file in.st <<END
out_0 F32 1,1,1 0
lse_0 F32 1,1 0
$1
END
    shift
    "$@"
}
run="run merge_states in.st fails.out"
refuse "out_1 F32 1,1,1 0" fails $run
refuse "lse_1 F32 1,1 0" fails $run
refuse "out_2 F32 1,1,1 0
lse_2 F32 1,1 0" fails $run
refuse "out_16 F32 1,1,1 0
lse_16 F32 1,1 0" fails $run
refuse "" fails $run --lse_base 10
refuse "" fails $run --scale 1
refuse "out_1 F32 1,1,2 0 0
lse_1 F32 1,1 0" library_fails $run
refuse "out_1 F32 1,1,1 0
lse_1 F32 1 0" library_fails $run
refuse "out_1 I32 1,1,1 0
lse_1 F32 1,1 0" library_fails $run
make_file in.st <<END
out_0 F32 1,1 0
lse_0 F32 1,1 0
END
fails $run
make_file in.st <<END
out_0 F32 1,1,1 0
END
fails $run
