# SPDX-License-Identifier: MIT
# replay: traces that are none, each refused with file and line, and options that do not go together.
. "$TESTS/lib.sh"

good='{"input_length": 600, "output_length": 1, "hash_ids": [1, 2]}'
# second LINE: as the second line of a good trace
second() {
    printf '%s\n%s\n' "$good" "$1" >trace.jsonl
    fails replay trace.jsonl
}
first() {
    printf '%s\n' "$1" >trace.jsonl
    fails replay trace.jsonl
}
csv() {
    printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n%s\n' "$1" >trace.csv
    fails replay trace.csv
}

echo "no file, a folder, nothing in it"
fails replay missing.jsonl
fails replay .
: >empty
fails replay empty
printf '\n \r\n\n' >blank
fails replay blank
echo 'TIMESTAMP,ContextTokens,GeneratedTokens' >header.csv
fails replay header.csv

echo "no trace"
first 'hello'
first '[1, 2]'
first 'TIMESTAMP,ContextTokens'
first '{}'
first '{"input_length": 1, "output_length": 1}'
first '{"hash_ids": [1], "input_tok_ids": [1]}'

echo "broken JSON"
second '{'
second '{"input_length"'
second '{"input_length" 600}'
second '{"input_length": 600'
second '{"input_length": 600,}'
second '{"input_length": 600 "output_length": 1}'
second '{"input_length": 600, "hash_ids": [1, 2'
second '{"input_length": 600, "hash_ids": [1 2]}'
second '{"input_length": 600, "hash_ids": [1,]}'
second '{"type": "never ends}'
second '{"type": "ends in a backslash\'
second "$(printf '{"type": "a\ttab"}')"
second '{"type": nothing}'
second "$good $good"
second 'TIMESTAMP,ContextTokens,GeneratedTokens'
printf '%s\n{"input_length": 600, "out\0put_length": 1, "hash_ids": [1, 2]}\n' "$good" >nul.jsonl
fails replay nul.jsonl

echo "wrong values"
second '{"input_length": -1, "output_length": 1, "hash_ids": []}'
second '{"input_length": 1.5, "output_length": 1, "hash_ids": [1]}'
second '{"input_length": 1e3, "output_length": 1, "hash_ids": [1]}'
second '{"input_length": "1", "output_length": 1, "hash_ids": [1]}'
second '{"input_length": 01, "output_length": 1, "hash_ids": [1]}'
second '{"input_length": 1073741825, "output_length": 1, "hash_ids": []}'
second '{"input_length": 1, "output_length": 99999999999999999999999, "hash_ids": [1]}'
second '{"input_length": 1, "output_length": 1, "hash_ids": 1}'
second '{"input_length": 1, "output_length": 1, "hash_ids": [-1]}'
second '{"input_length": 1, "output_length": 1, "hash_ids": ["1"]}'
second '{"input_length": 1, "output_length": 1, "hash_ids": [[1]]}'
second '{"input_length": 1, "output_length": 1, "hash_ids": [9223372036854775808]}'
second '{"input_length": 1, "output_length": 1, "hash_ids": [18446744073709551617]}'
second '{"input_length": 1, "input_length": 1, "output_length": 1, "hash_ids": [1]}'
second '{"input_length": 1, "output_length": 1, "hash_ids": [1], "more": [1]}'

echo "fields that are missing, or do not fit"
second '{"output_length": 1, "hash_ids": [1]}'
second '{"input_length": 1, "hash_ids": [1]}'
second '{"input_length": 1, "output_length": 1}'
second '{"input_length": 513, "output_length": 1, "hash_ids": [1]}'
second '{"input_length": 512, "output_length": 1, "hash_ids": [1, 2]}'
second '{"input_tok_ids": [1], "output_toks": 1}'
good='{"input_tok_ids": [1, 2], "output_toks": 1}'
second '{"input_tok_ids": [2147483648], "output_toks": 1}'
second '{"input_tok_ids": [1]}'
second '{"output_toks": 1}'
good='{"chat_id": 1, "turn": 1, "input_length": 17, "output_length": 1, "hash_ids": [1, 2]}'
second '{"chat_id": 1, "turn": 1, "input_length": 33, "output_length": 1, "hash_ids": [1, 2]}'

echo "CSV"
csv '2023-11-16 18:15:46,1'
csv '2023-11-16 18:15:46,1,2,3'
csv '2023-11-16 18:15:46,,2'
csv '2023-11-16 18:15:46,1,x'
csv '2023-11-16 18:15:46,-1,2'
csv '2023-11-16 18:15:46,1,1073741825'
csv '2023-11-16 18:15:46,1,99999999999999999999999999'
csv ',1,2'
csv 'soon,1,2'

echo "requests of more tokens than a sequence may have are refused, not the trace"
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n1,600000000,600000000\n2,5,5\n' >long.csv
"$PAGEDKV" replay long.csv --capacity 10 --policy lru --json | grep -oE '"(requests|refused)[a-z_]*": [0-9]*'

echo "a line without an end"
truncate -s 300M endless.jsonl
fails replay endless.jsonl
rm endless.jsonl

echo "numbers and escapes of fields that are none of a trace's"
json() { printf '{"input_length": 600, "output_length": 1, "hash_ids": [1, 2], "x": %s}\n' "$1" >json.jsonl; fails replay json.jsonl; }
json 1.2.3
json '+-.eE5'
json '1.'
json '1e'
json '-'
json '"\q"'
printf '{"input_length": 600, "output_length": 1, "hash_ids": [1, 2], "x": -1.5e+10, "y": "\\u0041\\n"}\n' >json.jsonl
"$PAGEDKV" replay json.jsonl --policy lru --json | grep -c '"requests": 1,'

echo "what is good before the limit is replayed"
printf '{"input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\nbroken\n' >trace.jsonl
"$PAGEDKV" replay trace.jsonl --limit 1 --policy lru --json | grep -c '"requests": 1,'

echo "options"
printf '{"input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n' >good.jsonl
fails replay
fails replay good.jsonl good.jsonl
fails replay --synthetic good.jsonl
fails replay good.jsonl --policy mru
fails replay good.jsonl --policy lru,,lfu
fails replay good.jsonl --capacity 0
fails replay good.jsonl --capacity 10,many
fails replay good.jsonl --capacity 1073741825
fails replay good.jsonl --model best
fails replay good.jsonl --block_size 16
fails replay good.jsonl --limit 0
fails replay good.jsonl --seed 3
fails replay good.jsonl --row_bytes 8
fails replay good.jsonl --data --capacity 10,unlimited
fails replay good.jsonl --data --model ids
fails replay good.jsonl --shared_prompt_tokens 880 --model ids
fails replay --synthetic --limit 1 --block_size 32768 --data --row_bytes 1048576 --capacity 1073741824
fails replay good.jsonl --plot no/such/folder.svg
fails replay good.jsonl --capacity 0000000000000000000000000000010junk
mkfifo pipe && fails replay good.jsonl --plot pipe && [ -p pipe ] && echo "the pipe is still one"
fails replay header.csv --plot fails.out
csv_trace() { printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n' >good.csv; }
csv_trace
fails replay good.csv --model ids
fails replay good.csv --data
fails replay good.csv --plot fails.out
fails replay good.csv --shared_prompt_tokens 880
