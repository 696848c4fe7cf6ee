# SPDX-License-Identifier: MIT
# scatter_pa_kv_cache: the worked examples of every published scenario, and refusals.
. "$TESTS/lib.sh"

echo "Norm: slots 5, -1, 2 of 2 blocks of 4; a value head smaller than a key head"
for slots in I32 I64; do
    make_file in.st <<END
key BF16 3,2,2 1..12
key_cache BF16 2,4,2,2 0*32
slot_mapping $slots 3 5 -1 2
value BF16 3,2,1 101..106
value_cache BF16 2,4,2,1 0*16
END
    run_both scatter_pa_kv_cache in.st
done
run_both scatter_pa_kv_cache in.st --cache_mode Norm --scatter_mode None | cksum >one
run_both scatter_pa_kv_cache in.st --key_layout NHD --value_layout NHD | cksum >two
cmp one two

echo "key-only"
make_file in.st <<END
key I8 3,1,4 1..12
key_cache I8 2,2,1,4 0*16
slot_mapping I32 3 3 0 -7
END
run_both scatter_pa_kv_cache in.st
library_fails run scatter_pa_kv_cache in.st fails.out --cache_mode PA_NZ

echo "PA_NZ: slot 6 in blocks of 4, 2 heads of 32; feature 35 of the key (135) is element 419"
make_file in.st <<END
key F16 1,2,32 100..163
key_cache F16 2,4,4,16 0*512
slot_mapping I64 1 6
value I8 1,2,32 1..64
value_cache I8 2,2,4,32 0*512
END
run_both scatter_pa_kv_cache in.st --cache_mode PA_NZ | nonzero

echo "NHSD, and a key in X_PACKED with a value in TRANSPOSED"
make_file in.st <<END
key I32 2,2,4 1..16
key_cache I32 2,2,3,4 0*48
slot_mapping I32 2 4 0
value I32 2,2,4 101..116
value_cache I32 2,2,3,4 0*48
END
run_both scatter_pa_kv_cache in.st --cache_mode NHSD | nonzero
make_file in.st <<END
key I32 2,1,8 1..16
key_cache I32 1,1,2,3,4 0*24
slot_mapping I32 2 2 0
value I32 2,1,3 101..106
value_cache I32 1,1,3,3 0*9
END
run_both scatter_pa_kv_cache in.st --key_layout X_PACKED --value_layout TRANSPOSED

echo "Nct: keys and values inside rows of 12; the value has a stride of its own"
make_file in.st <<END
key F16 4,12 0..47
key_cache F16 1,4,1,2 0*8
slot_mapping I32 4 0..3
value F16 4,12 0..47
value_cache F16 1,4,1,2 0*8
END
run_both scatter_pa_kv_cache in.st --scatter_mode Nct --strides 12,12 --offsets 8,10
make_file in.st <<END
key F16 4,12 0..47
key_cache F16 1,4,1,2 0*8
slot_mapping I32 4 0..3
value F16 4,3 100..111
value_cache F16 1,4,1,2 0*8
END
run_both scatter_pa_kv_cache in.st --scatter-mode=nct --strides=12,3 --offsets=8,1
library_fails run scatter_pa_kv_cache in.st fails.out --scatter_mode Nct --strides 12,3 --offsets 8,2
fails run scatter_pa_kv_cache in.st fails.out --scatter_mode Nct --strides 12
fails run scatter_pa_kv_cache in.st fails.out --scatter_mode Nct --offsets 0,-1
fails run scatter_pa_kv_cache in.st fails.out --strides 12,3

echo "more tokens than slots: the last one wins"
make_file in.st <<END
key U8 5,1,1 1..5
key_cache U8 1,2,1,1 0*2
slot_mapping I32 5 0 1 0 1 0
value U8 5,1,1 11..15
value_cache U8 1,2,1,1 0*2
END
run_both scatter_pa_kv_cache in.st
run_both scatter_pa_kv_cache in.st --duplicates last_wins
library_fails run scatter_pa_kv_cache in.st fails.out --duplicates reject

echo "refusals"
make_file in.st <<END
key U8 2,1,1 1..2
key_cache U8 1,2,1,1 0*2
slot_mapping I32 2 1 2
value U8 2,1,1 11..12
value_cache U8 1,2,1,1 0*2
END
library_fails run scatter_pa_kv_cache in.st fails.out
library_fails run scatter_pa_kv_cache in.st fails.out --scatter_mode Alibi
fails run scatter_pa_kv_cache in.st fails.out --scatter_mode ropes
fails run scatter_pa_kv_cache in.st fails.out --cache_mode PA_NZ --key_layout NHD
make_file in.st <<END
key U8 1,1,1 1
key_cache U8 1,2,1,1 0*2
slot_mapping I32 1 1
compress_lens I32 1 1
END
library_fails run scatter_pa_kv_cache in.st fails.out
