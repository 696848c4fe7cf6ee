# SPDX-License-Identifier: MIT
# The decode step of doc/paged-attention-by-hand.md: whole, in two parts, with a window, with sinks.
. "$TESTS/lib.sh"

# In F32 0x3f800000 is 1 and 0x40000000 2. Blocks 3 and 1 are the sequence's; what is in no token is NaN.
nan=0x7fc00000
one=0x3f800000
two=0x40000000
make_step() {
    make_file step.st <<END
query F32 1,2,4 $one 0 $one 0 0 $one 0 0
key_cache F32 4,2,1,4 $nan*8 $two $two 0 0 $nan*4 $nan*8 $two 0 $two 0 0 $two 0 $two
value_cache F32 4,2,1,2 $nan*4 $two $two $nan*2 $nan*4 $one 0 0 $one
block_table I32 1,$1 $2
seq_lens I32 1 $3
query_start_loc I32 2 0 1
$4
END
}

# Four digits: native and sim agree in more, but not in all.
rounded() {
    floats | awk '{
        for (i = 4; i <= NF; i++)
            $i = sprintf("%.4f", $i)
        print
    }'
}

run_modes() {
    op=$1
    in=$2
    shift 2
    for mode in native sim; do
        "$PAGEDKV" run "$op" "$in" "$mode.out" --run_mode $mode "$@" || return
        "$ST_TOOL" dump "$mode.out" | rounded >"$mode.txt"
    done
    cmp native.txt sim.txt && cat native.txt
}

echo "whole"
make_step 2 "3 1" 3 ""
run_modes paged_attention step.st
echo "a window of one earlier token"
run_modes paged_attention step.st --window_left 1

echo "two parts"
for part in "3 2" "1 1"; do
    make_step 1 "${part% *}" "${part#* }" ""
    run_modes paged_attention step.st
    mv native.out "part_${part% *}.out"
done
echo "merged"
{
    "$ST_TOOL" dump part_3.out | sed 's/^\([a-z]*\)/\1_0/'
    "$ST_TOOL" dump part_1.out | sed 's/^\([a-z]*\)/\1_1/'
} | make_file parts.st
run_modes merge_states parts.st

echo "sinks of 2 and 1"
make_step 2 "3 1" 3 "sinks F32 2 $two $one"
run_modes paged_attention step.st
