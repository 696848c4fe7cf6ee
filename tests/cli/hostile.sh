# SPDX-License-Identifier: MIT
# Hostile safetensors files: each is refused with a sentence, and no output file appears.
. "$TESTS/lib.sh"

# What the JSON library says differs between its versions.
refused() { fails run copy_blocks "$1" fails.out | sed 's/\(no valid JSON\): .*;/\1: ...;/'; }

# header NAME TEXT DATA_BYTES: a file with that header
header() {
    "$ST_TOOL" raw "$1" auto "$2" "$3"
    refused "$1"
}

echo "no file, a folder, a pipe, an empty file, a short file"
refused missing.st
refused .
mkfifo pipe.st
refused pipe.st
: >empty.st
refused empty.st
printf 1234567 >short.st
refused short.st

echo "truncated, in the header and in the data"
make_file whole.st <<END
key_cache U8 2,2,1,2 1..8
block_mapping I32 1,2 0 1
END
head -c 40 whole.st >cut.st
refused cut.st
head -c $(($(wc -c <whole.st) - 1)) whole.st >cut.st
refused cut.st

echo "lengths of headers"
"$ST_TOOL" raw long.st 100000001 '{}' 0
refused long.st
"$ST_TOOL" raw longest.st 0xffffffffffffffff '{}' 0
refused longest.st
"$ST_TOOL" raw beyond.st 3 '{}' 0
refused beyond.st
"$ST_TOOL" raw none.st 0 '' 0
refused none.st

echo "JSON"
header list.st '[]' 0
header garbage.st '{"a"' 0
header trailing.st '{} {}' 0
header number.st '{"a":1}' 0
header utf8.st "$(printf '{"\377":1}')" 0
header nul.st '{"a\u0000b":1}' 0
header twice.st '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}' 1
head -c 100000 /dev/zero | tr '\0' '[' | "$ST_TOOL" raw deep.st auto - 0
refused deep.st
yes '{"a":' | head -n 20000 | tr -d '\n' | "$ST_TOOL" raw deep.st auto - 0
refused deep.st
(printf '[0' && head -c 8000000 /dev/zero | tr '\0' ',' && printf ']') >commas
printf '\003\022\172\000\000\000\000\000' | cat - commas >many.st
refused many.st

echo "entries"
header dtype.st '{"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}' 16
header dtype.st '{"a":{"dtype":7,"shape":[1],"data_offsets":[0,16]}}' 16
header shape.st '{"a":{"dtype":"U8","data_offsets":[0,1]}}' 1
header shape.st '{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}' 1
header shape.st '{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}' 1
header shape.st '{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}' 1
header shape.st '{"a":{"dtype":"I64","shape":[4294967296,536870912],"data_offsets":[0,1]}}' 1
header shape.st '{"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}}' 1
header offsets.st '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}' 1
header offsets.st '{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}' 1
header offsets.st '{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}' 1
header offsets.st '{"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}}' 1
header size.st '{"a":{"dtype":"U16","shape":[2],"data_offsets":[0,3]}}' 3
header more.st '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}' 1
header metadata.st '{"__metadata__":{"a":1}}' 0
header metadata.st '{"__metadata__":[]}' 0
header name.st "$(printf '{"\\u001b[31m\\n%0200d":{}}' 0)" 0

echo "names that would steer a terminal"
header steer.st '{"\u001b]0;x\u0007\u0085\u202e":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}' 1

echo "overlap, hole, rest"
header overlap.st '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}' 3
header hole.st '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}' 3
header rest.st '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}' 2
header empty.st '{}' 1

echo "a whole file, and data at an odd offset"
run_both copy_blocks whole.st
make_file odd.st <<END
key_cache U8 3,1,1,1 1..3
block_mapping I32 1,2 0 2
END
run_both copy_blocks odd.st
"$ST_TOOL" raw metadata.st auto '{"__metadata__":{"format":"pt"},"key_cache":{"dtype":"U8","shape":[3,1,1,1],"data_offsets":[0,3]},"block_mapping":{"dtype":"I32","shape":[0,2],"data_offsets":[3,3]}} ' 3
run_both copy_blocks metadata.st

echo "an axis without elements beside axes whose product is no number of 64 bits"
"$ST_TOOL" raw empty.st auto '{"input":{"dtype":"F16","shape":[1048576,1048576,1099511627776,0],"data_offsets":[0,0]},"src":{"dtype":"F16","shape":[1,1,1099511627776,0],"data_offsets":[0,0]},"index":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]}}' 8
run_both scatter_update empty.st
