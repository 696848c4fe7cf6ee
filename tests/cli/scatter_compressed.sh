# SPDX-License-Identifier: MIT
# scatter_pa_kv_cache in its compressed modes: the worked examples, both forms of the source, both shapes
# and dtypes of the indices, and refusals.
. "$TESTS/lib.sh"

echo "Alibi: the last 2 of 3 tokens from slot 0 on, the last of 4 from slot 8 on"
for slots in "2,1" "2"; do
    for dtype in I32 I64; do
        make_file in.st <<END
key F16 7,1,1 100..106
key_cache F16 4,4,1,1 0*16
slot_mapping $dtype $slots 0 8
compress_lens I32 $slots 2 1
seq_lens $dtype 2 3 4
END
        run_both scatter_pa_kv_cache in.st --scatter_mode Alibi
    done
done

echo "Rope and Omni: tokens 10 ... 60, a window of 3 from token 1 on, slot 4 of blocks of 3"
make_file in.st <<END
key U8 6,1,1 10 20 30 40 50 60
key_cache U8 4,3,1,1 0*12
slot_mapping I64 1,1 4
value I32 6,1,2 10 110 20 120 30 130 40 140 50 150 60 160
value_cache I32 4,3,1,2 0*24
compress_lens I64 1,1 3
seq_lens I64 1 6
compress_seq_offset I32 1,1 1
END
run_both scatter_pa_kv_cache in.st --scatter_mode Rope
run_both scatter_pa_kv_cache in.st --scatter-mode=omni

echo "bf16: the mean of 1 and 1 + 2^-7 is 1, that of the next two is 1 + 2^-6"
make_file in.st <<END
key BF16 4,1,1 16256 16257 16257 16258
key_cache BF16 1,4,1,1 0*4
slot_mapping I32 2 0 2
compress_lens I32 2 2 2
seq_lens I32 2 2 2
compress_seq_offset I32 2 0 0
END
run_both scatter_pa_kv_cache in.st --scatter_mode Rope

echo "padded sources: 2 sequences of 3 and 1 tokens in rows of 4, 2 heads; one region skipped"
make_file in.st <<END
key I16 2,4,2,1 1..16
key_cache I16 3,4,1,1 0*12
slot_mapping I32 2,2 0 -1 8 6
compress_lens I32 2,2 1 99 0 1
seq_lens I32 2 3 1
compress_seq_offset I32 4 1 99 0 -1
END
run_both scatter_pa_kv_cache in.st --scatter_mode Omni

echo "hifloat8 is copied, and has no mean"
make_file in.st <<END
key U8 3,1,1 1..3
key_cache U8 1,4,1,1 0*4
slot_mapping I32 1 0
compress_lens I32 1 2
seq_lens I32 1 3
compress_seq_offset I32 1 0
END
run_both scatter_pa_kv_cache in.st --scatter_mode Omni --dtype hifloat8
library_fails run scatter_pa_kv_cache in.st fails.out --scatter_mode Rope --dtype hifloat8
run_both scatter_pa_kv_cache in.st --scatter_mode Rope

echo "refusals"
# refuse SLOTS LENS OFFSETS SEQ_LENS [--attribute value ...]: two heads, five tokens, eight slots.
refuse() {
    make_file in.st <<END
key U8 5,2,1 1..10
key_cache U8 2,4,1,1 0*8
slot_mapping I64 1,2 $1
compress_lens I64 1,2 $2
seq_lens I64 1 $4
compress_seq_offset I64 1,2 $3
END
    shift 4
    status=0
    "$PAGEDKV" run scatter_pa_kv_cache in.st fails.out "$@" 2>message || status=$?
    cat message
    echo "exit $status"
    report_files
}
refuse "0 4" "6 3" "0 0" 5 --scatter_mode Omni
refuse "0 4" "-1 3" "0 0" 5 --scatter_mode Omni
refuse "0 4" "3 3" "0 3" 5 --scatter_mode Rope
refuse "0 4" "3 3" "0 -2" 5 --scatter_mode Rope
refuse "0 4" "3 3" "0 0" 4 --scatter_mode Rope
refuse "0 4" "3 3" "0 0" -5 --scatter_mode Rope
refuse "0 7" "3 3" "0 0" 5 --scatter_mode Omni
refuse "0 2" "3 3" "0 0" 5 --scatter_mode Rope
refuse "0 4" "3 3" "0 0" 5 --scatter_mode Alibi
refuse "0 4" "3 3" "0 0" 5
refuse "0 4" "3 3" "0 0" 5 --scatter_mode Rope --cache_mode NHSD
refuse "0 4" "3 3" "0 0" 5 --scatter_mode Rope --strides 1,1
