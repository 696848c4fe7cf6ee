# SPDX-License-Identifier: MIT
# replay on traces small enough to follow by hand, in every format, and both models.
. "$TESTS/lib.sh"

# What is the same on every machine.
facts() {
    "$PAGEDKV" replay "$@" --json |
        sed -E 's/, "(operations_per_s|seconds|read_seconds|gb_per_s)": [0-9.e+-]+//g'
}
# Hits and evictions of each line.
hits() {
    facts "$@" | sed -E 's/.*"policy": "([a-z]*)", "capacity": ([0-9a-z]*),.*"block_hit_rate": ([0-9.]*), "token_hit_rate": ([0-9.]*), "evictions": ([0-9]*), "peak_blocks": ([0-9]*).*/\1 \2: blocks \3 tokens \4 evictions \5 peak \6/'
}

# One letter a block, one word a request, all blocks full: "abc" is three blocks.
letters() {
    for word; do
        ids=$(echo "$word" | sed 's/./&, /g; s/, $//' | tr 'a-j' '0-9')
        echo "{\"timestamp\": 0, \"input_length\": $((${#word} * 512)), \"output_length\": 1, \"hash_ids\": [$ids]}"
    done
}

echo "Mooncake: blocks of 512, the last one of 100 tokens; the third request finds all 1124 tokens"
cat >mooncake.jsonl <<END
{"timestamp": 0, "input_length": 1124, "output_length": 7, "hash_ids": [46, 47, 50]}
{"timestamp": 5, "input_length": 1024, "output_length": 7, "hash_ids": [46, 90]}

{ "hash_ids" : [46,47,50] , "output_length":1,"input_length":1124, "timestamp": 1.5e3, "type": "a \"b\" [" , "x": null}
END
facts mooncake.jsonl --capacity unlimited --policy lru
facts mooncake.jsonl --capacity unlimited --policy lru --model ids
echo "the first block as 700 tokens: 700 of 1024, and 1124 as before; as 5000: all of both prompts"
hits mooncake.jsonl --capacity unlimited --policy lru --shared_prompt_tokens 700
hits mooncake.jsonl --capacity unlimited --policy lru --shared-prompt-tokens=5000
echo "one request only"
facts mooncake.jsonl --limit 1 --capacity 5 --policy fifo

echo "plain cache of 2 ids, accesses a b a c a b"
letters a b a c a b >ids.jsonl
hits ids.jsonl --model ids --capacity 2
echo "LFU: a and b, used twice, stay, c and d replace each other"
letters a a b b c d a b c d >lfu.jsonl
hits lfu.jsonl --model ids --capacity 3 --policy lfu
echo "LFU: the count of a dies with it, so d replaces it and not b"
letters a a b b b c a d b >count.jsonl
hits count.jsonl --model ids --capacity 2 --policy lfu

echo "pool of 3 blocks: e takes c, the tail of abc, and abd finds ab; FIFO gives up a, and with it all"
letters abc e abd abc >pool.jsonl
hits pool.jsonl --capacity 3
echo "4 blocks: the pool keeps the front ab for abc, the plain cache has given up a when it comes"
letters abc de abc >chain.jsonl
hits chain.jsonl --capacity 4 --policy lru
hits chain.jsonl --capacity 4 --policy lru --model ids
echo "a request of 3 blocks is refused by a pool of 2, and changes nothing"
letters ab abc ab >large.jsonl
facts large.jsonl --capacity 2 --policy lru
echo "an id after two different blocks is two prefixes to the pool, and one id to the plain cache"
letters ab cb ab cb >two.jsonl
hits two.jsonl --capacity unlimited --policy lru
hits two.jsonl --capacity unlimited --policy lru --model ids

echo "Qwen-Bailian: blocks of 16"
cat >qwen.jsonl <<END
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 17, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [9, 8]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 0.6, "input_length": 48, "output_length": 3, "type": "text", "turn": 2, "hash_ids": [9, 7, 6]}
END
facts qwen.jsonl --capacity unlimited --policy lru

echo "token ids: blocks of 16, or of 4, where more is shared; the same tokens after others are not"
cat >tokens.jsonl <<END
{"arrival_ns": 1, "input_tok_ids": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17], "output_toks": 3}
{"arrival_ns": 2, "input_tok_ids": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,0,17], "output_toks": 3}
{"arrival_ns": 3, "input_tok_ids": [5,6,7,8], "output_toks": 3}
{"arrival_ns": 4, "input_tok_ids": [], "output_toks": 3}
END
hits tokens.jsonl --capacity unlimited --policy lru
facts tokens.jsonl --capacity unlimited --policy lru --block_size 4

echo "prompts without tokens: nothing to find, with and without data"
echo '{"arrival_ns": 4, "input_tok_ids": [], "output_toks": 3}' >empty.jsonl
hits empty.jsonl --capacity 1,unlimited --policy lru
hits empty.jsonl --data
hits empty.jsonl --model ids --capacity 1 --policy lfu

echo "Azure: lengths alone; 20 + 12 tokens fill two blocks of 16, 16 + 1 need two, 3 + 2 one"
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,20,12\r\n2023-11-16 18:15:50.9951690,16,1\n2023-11-16 18:15:51.2224670,3,2' >azure.csv
facts azure.csv
facts azure.csv --block_size 20 --capacity 1,3

echo "a trace from a pipe, as text"
"$PAGEDKV" replay /dev/stdin --capacity unlimited --policy lru <mooncake.jsonl |
    sed -E 's/read in .*//; s/[0-9.]+ +[0-9.]+ s$//'
"$PAGEDKV" replay azure.csv | sed -E 's/read in .*//; s/[0-9.]+ +[0-9.]+ s$//'

echo "data: 5 blocks of 512 rows written, 4 compared; rows of an odd size"
facts mooncake.jsonl --data
facts mooncake.jsonl --data --row_bytes 11 --capacity 3,4 --policy lfu
"$PAGEDKV" replay mooncake.jsonl --data | tail -n 1 | sed 's/; [0-9.]* GB.*//'

echo "a made-up trace is the same each time, and another with another seed"
facts --synthetic --limit 300 --capacity 50 >a
facts --synthetic --limit 300 --capacity 50 --seed 1 >b
facts --synthetic --limit 300 --capacity 50 --seed 2 >c
cmp a b && cmp -s b c || echo "differs"
facts --synthetic --limit 300 --block_size 16 --data | grep -c '"requests": 300'

echo "a plot: three curves, of the range of the trace, and nothing left behind"
"$PAGEDKV" replay --synthetic --limit 300 --plot plot.svg >/dev/null
grep -o '<polyline' plot.svg
grep -oE '>(LRU|FIFO|LFU|token hit rate|capacity in blocks of [0-9]+ tokens)<' plot.svg
ls plot.svg*
