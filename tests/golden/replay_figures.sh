#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Published figures on real traffic: replay_figures.sh PAGEDKV SOURCE_DIR
# Hit rates of the Mooncake conversation trace (FAST '25) and use of slots of the Azure conversation
# trace (2023), from the replays and the figure that are named beside them. The traces are in
# data/traces of the test data; without them the test is skipped.
set -u

pagedkv=$1
traces=${PAGEDKV_TEST_DATA:-$2/../shared}/data/traces
conversation=$traces/mooncake_conversation.jsonl
azure=$traces/azure_2023_conv.csv
if [ ! -r "$conversation" ] || [ ! -r "$azure" ]; then
    echo "skipped: there is no mooncake_conversation.jsonl or azure_2023_conv.csv in $traces (see PAGEDKV_TEST_DATA)"
    exit 77
fi
checked=0
wrong=0

# near TOLERANCE FIELD "EXPECTED ..." ARGUMENT ...: the field of each line that replay prints is the
# expected one, to four digits and then within the tolerance.
near() {
    tolerance=$1
    field=$2
    expected=$3
    shift 3
    ${PAGEDKV_EMULATOR:-} "$pagedkv" replay "$@" --json >lines || exit 1
    awk -v tolerance="$tolerance" -v field="$field" -v expected="$expected" -v arguments="$*" '
        BEGIN { count = split(expected, values, " ") }
        {
            value = "none"
            if (match($0, "\"" field "\": [0-9.e-]+"))
                value = sprintf("%.4f", substr($0, RSTART + length(field) + 4, RLENGTH - length(field) - 4))
            off = value - values[NR]
            if (value == "none" || NR > count || off > tolerance + 1e-9 || off < -tolerance - 1e-9) {
                print "wrong: " field " is " value ", not " values[NR] " within " tolerance ": " $0
                status = 1
            }
        }
        END {
            if (NR != count)
                print "wrong: " NR " lines, not " count ": replay " arguments
            exit status || NR != count
        }' lines || wrong=$((wrong + 1))
    checked=$((checked + $(echo "$expected" | wc -w)))
}

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
case $pagedkv in /*) ;; *) pagedkv=$PWD/$pagedkv ;; esac
traces=$(cd "$traces" && pwd)
conversation=$traces/mooncake_conversation.jsonl
azure=$traces/azure_2023_conv.csv
cd "$scratch" || exit 1

# Independent replays of the released ids, at these capacities in blocks.
blocks=1000,10000,30000,50000,100000,unlimited
near 0 block_hit_rate ".0445 .2112 .3257 .3546 .3637 .3664" "$conversation" --model ids --policy lru --capacity $blocks
near 0 block_hit_rate ".0435 .1865 .3021 .3400 .3593 .3664" "$conversation" --model ids --policy fifo --capacity $blocks
near 0 block_hit_rate ".0481 .1318 .2759 .3438 .3631 .3664" "$conversation" --model ids --policy lfu --capacity $blocks
near 0 block_hit_rate ".0445 .2116 .3257 .3546 .3637 .3664" "$conversation" --model pool --policy lru --capacity $blocks

# Mooncake, FAST '25, figure 9, conversation, LRU: 1e4 ... 1e9 tokens in blocks of 512. The released
# ids show one block of the system prompt that all requests share, which has 512 to 891 tokens.
blocks=19,195,1953,3906,7812,9765,15625,19531,97656,195312,1953125
published=".0449 .0731 .0866 .1202 .2149 .2471 .2997 .3263 .3983 .4006 .4006"
near 0.04 token_hit_rate "$published" "$conversation" --policy lru --capacity $blocks
near 0.015 token_hit_rate "$published" "$conversation" --policy lru --capacity $blocks --shared_prompt_tokens 880

# Sum of tokens / sum of slots at the end of each request.
for pair in 8:.9974 16:.9946 32:.9888 64:.9779 128:.9562 256:.9198 512:.8657; do
    near 0 slot_share "${pair#*:}" "$azure" --block_size "${pair%:*}"
done
near 0 slot_share_longest ".0969" "$azure"
near 0 slot_share_power_of_two ".6542" "$azure"

# The first requests as bytes: what is found holds what was written. The rate is that of a separate
# replay in Python.
near 0 block_hit_rate ".0486" "$conversation" --data --limit 2000

echo "$checked figures checked"
[ "$wrong" -eq 0 ]
