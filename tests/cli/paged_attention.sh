# SPDX-License-Identifier: MIT
# paged_attention: what each tensor and attribute does, where the answer is exact, and refusals.
. "$TESTS/lib.sh"

# Queries of zeroes give every position the same weight, so out is the mean of the visible values. In F32
# 0x3f800000 is 1, and 0x40000000, 0x40400000, 0x40800000 are 2, 3 and 4; in F16 0x3c00 is 1, 0x4000 2.
# Sequence 0 has its 4 tokens in blocks 2 and 0, with the values 1 to 4; sequence 1 its 2 tokens in block 1, with 16
# and 32. What is in no sequence is NaN.
caches() {
    cat <<END
key_cache F32 4,2,1,2 0*12 0x7fc00000*4
value_cache F32 4,2,1,1 0x40400000 0x40800000 0x41800000 0x42000000 0x3f800000 0x40000000 0x7fc00000*2
END
}

echo "decode: the means of 1 to 4 and of 16 and 32, logarithms of 4 and of 2"
make_file in.st <<END
query F32 2,1,2 0*4
$(caches)
block_table I32 2,3 2 0 99 1 -5 99
seq_lens I32 2 4 2
query_start_loc I32 3 0 1 2
END
run_both paged_attention in.st --lse_base 2 | floats
echo "a window of 1 earlier token, and of none"
run_both paged_attention in.st --lse_base 2 --window_left 1 | floats
run_both paged_attention in.st --lse-base 2 --window-left=0 | floats

echo "the first three tokens of sequence 0 and the first one of sequence 1 are gone, and with them a block"
make_file in.st <<END
query F32 2,1,2 0*4
$(caches)
block_table I32 2,3 -7 0 99 1 -5 99
seq_lens I32 2 1 1
query_start_loc I32 3 0 1 2
seq_offset I64 2 3 1
END
run_both paged_attention in.st --lse_base 2 | floats
library_fails run paged_attention in.st fails.out --num_shared_tokens 1

echo "a whole prompt, and a chunk: causal, not causal, with one later token"
make_file in.st <<END
query F32 5,1,2 0*10
$(caches)
block_table I64 2,2 2 0 1 0
seq_lens I64 2 4 2
query_start_loc I64 3 0 4 5
END
run_both paged_attention in.st --lse_base 2 --window_left 1 | floats
run_both paged_attention in.st --lse_base 2 --window_left 1 --window_right 1 --softcap 0 | floats
run_both paged_attention in.st --lse_base 2 --causal 0 | floats
run_both paged_attention in.st --lse_base 2 --causal 0 --window_left 0 --window_right 1 | floats

# ALiBi of 1000 a token hides every other one. A sink of 0 counts as one more score of 0 without a value.
echo "slopes, and sinks, for two heads over one"
make_file in.st <<END
query F16 1,2,2 0*4
key_cache F16 2,2,1,2 0*8
value_cache F16 2,2,1,1 0x3c00 0x4000 0x4000 0x3c00
block_table I32 1,2 1 0
seq_lens I32 1 3
query_start_loc I32 2 0 1
alibi_slopes F32 2 0x447a0000*2
sinks F32 2 0 0xff800000
END
run_both paged_attention in.st --lse_base 2 | floats

echo "masks of the last 3 tokens: the second query sees nothing"
make_file in.st <<END
query F32 2,1,2 0*4
$(caches)
block_table I32 2,2 2 0 1 0
seq_lens I32 2 4 2
query_start_loc I32 3 0 1 2
mask BOOL 2,3 0 1 0 1 0 0
END
run_both paged_attention in.st --lse_base 2 | floats
make_file in.st <<END
query F32 2,1,2 0*4
$(caches)
block_table I32 2,2 2 0 1 0
seq_lens I32 2 4 2
query_start_loc I32 3 0 1 2
mask F32 2,3 0xff800000 0 0xff800000 0 0xff800000 0xff800000
END
run_both paged_attention in.st --lse_base 2 | floats

# Scores of 64 and 256: a soft cap of 1 makes both 1, so that lse is 1 + log 2, not the same to the last bit in both
# modes. A scale of -1e-30 makes both nearly 0.
echo "soft cap and scale; one head of keys in HND"
make_file in.st <<END
query F32 1,1,1 0x41000000
key_cache F32 1,1,2,1 0x41000000 0x42000000
value_cache F32 1,1,2,1 0x40000000 0x40800000
block_table I32 1,1 0
seq_lens I32 1 2
query_start_loc I32 2 0 1
END
for mode in native sim; do
    "$PAGEDKV" run paged_attention in.st out.st --cache_mode NHSD --softcap 1 --run_mode $mode &&
        "$ST_TOOL" dump out.st | floats
done
run_both paged_attention in.st --key_layout HND --value_layout HND --scale -1e-30 --lse_base 2 | floats

echo "MLA: values are the first 2 of the 3 elements of each key"
make_file in.st <<END
query BF16 1,2,3 0*6
key_cache BF16 1,2,1,3 0x3f80 0x4000 0x7f00 0x4040 0x4080 0xff00
block_table I32 1,1 0
seq_lens I32 1 2
query_start_loc I32 2 0 1
END
run_both paged_attention in.st --value_head_size 2 --lse_base 2 | floats
"$PAGEDKV" run paged_attention in.st out.st --value_head_size 2 --products bf16 --lse_base 2 &&
    "$ST_TOOL" dump out.st | floats

echo "PA_NZ with heads in four dimensions, a prefix that two sequences share"
make_file in.st <<END
query F16 2,2,16 0*64
key_cache F16 3,2,2,16 0*192
value_cache F16 3,2,2,16 0x3c00*64 0x4000*64 0x4200*64
block_table I32 2,2 0 1 0 2
seq_lens I32 2 4 4
query_start_loc I32 3 0 1 2
END
run_both paged_attention in.st --cache_mode PA_NZ --num_kv_heads 2 --lse_base 2 --num_shared_tokens 2 |
    floats | sed 's/\( [^ ]*\)\1\{15\}/\1*16/g'

echo "no tokens"
make_file in.st <<END
query F32 0,1,2
$(caches)
block_table I32 1,1 7
seq_lens I32 1 0
query_start_loc I32 2 0 0
END
run_both paged_attention in.st

echo "refusals of attributes and tensors"
refuse() {
    make_file in.st <<END
query F32 1,1,2 0*2
$(caches)
block_table I32 1,2 2 0
seq_lens I32 1 4
query_start_loc I32 2 0 1
$1
END
    shift
    "$@"
}
run="run paged_attention in.st fails.out"
refuse "k_scale F32 1 0" fails $run
refuse "v_scale F32 1 0" fails $run
refuse "scale F32 1 0" fails $run
refuse "" fails $run --scale 0
refuse "" fails $run --scale nan
refuse "" fails $run --scale 1e99
refuse "" fails $run --scale 2x
refuse "" fails $run --softcap -1
refuse "" fails $run --window_left -2
refuse "" fails $run --window_right 9223372036854775807
refuse "" fails $run --causal 2
refuse "" fails $run --lse_base 10
refuse "" fails $run --products f16
refuse "" fails $run --value_head_size 0
refuse "" fails $run --num_shared_tokens -1
refuse "" fails $run --dtype hifloat8

echo "refusals of the library"
refuse "" library_fails $run --value_head_size 2
refuse "" library_fails $run --num_shared_tokens 5
refuse "" library_fails $run --key_layout PA_NZ
refuse "alibi_slopes F32 2 0 0" library_fails $run
refuse "sinks F16 1 0" library_fails $run
refuse "mask F32 2,1 0 0" library_fails $run
refuse "mask I32 1,1 0" library_fails $run --run_mode sim
refused_step() {
    make_file in.st <<END
query $1
$(caches)
block_table I32 1,2 $2
seq_lens I32 1 $3
query_start_loc I32 $4
END
    shift 4
    "$@"
}
refused_step "F32 1,2 0*2" "2 0" 4 "2 0 1" fails $run
refused_step "F32 4,4,0" "2 0" 4 "2 0 1" fails $run
refused_step "F32 1,1,3 0*3" "2 0" 4 "2 0 1" library_fails $run
refused_step "F32 2,1,2 0*4" "2 0" 4 "2 0 1" library_fails $run
refused_step "I32 1,1,2 0*2" "2 0" 4 "2 0 1" library_fails $run
refused_step "F32 1,1,2 0*2" "2 4" 4 "2 0 1" library_fails $run
refused_step "F32 1,1,2 0*2" "2 4" 4 "2 0 1" library_fails $run --run_mode sim
refused_step "F32 1,1,2 0*2" "2 0" 5 "2 0 1" library_fails $run
refused_step "F32 1,1,2 0*2" "2 0" 0 "2 0 1" library_fails $run
refused_step "F32 1,1,2 0*2" "2 0" 4 "2 1 1" library_fails $run
refused_step "F32 1,1,2 0*2" "2 0" 4 "3 0 1 1" library_fails $run
