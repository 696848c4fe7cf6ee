# SPDX-License-Identifier: MIT
# gather_pa_kv_cache: the worked example in every layout, offsets inside a block, and refusals.
. "$TESTS/lib.sh"

echo "blocks of 2; tables 3 1 and 0 2; lengths 2 and 3; the first sequence from token 2"
make_file in.st <<END
key_cache F16 4,2,1,1 0 1 10 11 20 21 30 31
value_cache F16 4,2,1,2 0..15
block_tables I32 2,2 3 1 0 2
seq_lens I32 3 0 2 5
seq_offset I32 2 2 0
END
run_both gather_pa_kv_cache in.st
make_file in.st <<END
key_cache F16 4,2,1,1 0 1 10 11 20 21 30 31
value_cache F16 4,2,1,2 0..15
block_tables I64 2,2 3 1 0 2
seq_lens I64 2 2 3
seq_offset I64 2 2 0
END
run_both gather_pa_kv_cache in.st --is_seq_lens_cumsum 0

echo "from the middle of a block, unread entries of the table hold anything"
make_file in.st <<END
key_cache F16 4,2,1,1 0 1 10 11 20 21 30 31
block_tables I32 2,3 3 1 -5 99 2 0
seq_lens I32 2 3 2
seq_offset I32 2 1 3
END
run_both gather_pa_kv_cache in.st --is-seq-lens-cumsum=0

echo "PA_NZ: 2 heads of 8, fragments of 8"
make_file in.st <<END
key_cache I32 4,2,2,8 0..127
value_cache I32 4,2,2,8 1000..1127
block_tables I32 2,2 3 1 0 2
seq_lens I32 3 0 2 5
seq_offset I32 2 2 0
END
run_both gather_pa_kv_cache in.st --cache_mode PA_NZ
run_both gather_pa_kv_cache in.st --cache_mode PA_NZ --num_kv_heads 2

echo "no tokens"
make_file in.st <<END
key_cache F16 4,2,1,1 0*8
block_tables I32 2,1 -1 -1
seq_lens I32 3 0 0 0
END
run_both gather_pa_kv_cache in.st

echo "refusals"
make_file in.st <<END
key_cache F16 4,2,1,1 0*8
block_tables I32 1,2 3 4
seq_lens I32 2 0 3
END
library_fails run gather_pa_kv_cache in.st fails.out
make_file in.st <<END
key_cache F16 4,2,1,1 0*8
block_tables I32 1,2 3 0
seq_lens I64 2 0 4611686018427387904
END
library_fails run gather_pa_kv_cache in.st fails.out
make_file in.st <<END
key_cache F16 4,2,1,1 0*8
block_tables I32 1,2 3 0
seq_lens I32 1 -1
END
library_fails run gather_pa_kv_cache in.st fails.out --is_seq_lens_cumsum 0
library_fails run gather_pa_kv_cache in.st fails.out
fails run gather_pa_kv_cache in.st fails.out --is_seq_lens_cumsum 2
library_fails run gather_pa_kv_cache in.st fails.out --num_kv_heads 3
