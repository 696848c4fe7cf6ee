# SPDX-License-Identifier: MIT
# Names of tensors and attributes, spellings, run modes, CPU levels, and what happens to output files.
. "$TESTS/lib.sh"

make_file in.st <<END
input I32 4,2 0*8
index I32 1,2 3 0
src I32 2,2 1..4
END

echo "commands"
fails
fails fly
fails run
fails run fly in.st fails.out
fails run scatter_update
fails run scatter_update in.st fails.out more
"$PAGEDKV" --help >help.text && "$PAGEDKV" --version
for command in run explain info; do
    "$PAGEDKV" $command --help | head -n 1
done
for op in scatter_update scatter_pa_kv_cache gather_pa_kv_cache copy_blocks convert_layout slot_mapping; do
    "$PAGEDKV" run $op --help | grep -c . >/dev/null || echo "no help: $op"
    "$PAGEDKV" run --help | grep "^$op:"
done

echo "attributes and their spellings"
fails run scatter_update in.st fails.out --dims -2
fails run scatter_update in.st fails.out --dim
fails run scatter_update in.st fails.out --dim -2x
fails run scatter_update in.st fails.out --dim 99999999999999999999
fails run scatter_update in.st fails.out --key_layout NHD
fails run scatter_update in.st fails.out --threads 1025
fails run scatter_update in.st fails.out --duplicates maybe
run_both scatter_update in.st --dim=-2 --duplicates=last_wins
for mode in run_mode run-mode; do
    "$PAGEDKV" run scatter_update in.st out.st --$mode sim && "$ST_TOOL" dump out.st
    "$PAGEDKV" run --help >/dev/null && "$PAGEDKV" run scatter_update --$mode=native in.st out.st
    "$ST_TOOL" dump out.st
done

echo "run modes and CPU levels"
fails run scatter_update in.st fails.out --run_mode npu
fails run scatter_update in.st fails.out --run_mode fast
fails run scatter_update in.st fails.out --cpu mmx
"$PAGEDKV" run scatter_update in.st out.st --cpu c && "$ST_TOOL" dump out.st
PAGEDKV_CPU=mmx fails run scatter_update in.st fails.out
PAGEDKV_CPU=c "$PAGEDKV" run scatter_update in.st out.st && "$ST_TOOL" dump out.st

echo "tensors"
make_file bad.st <<END
input I32 4,2 0*8
indices I32 1,2 3 0
src I32 2,2 1..4
END
fails run scatter_update bad.st fails.out
make_file bad.st <<END
input I32 4,2 0*8
src I32 2,2 1..4
END
fails run scatter_update bad.st fails.out
make_file bad.st <<END
input F64 4,2 0*8
index I32 1,2 3 0
src F64 2,2 1..4
END
fails run scatter_update bad.st fails.out

echo "hifloat8 travels as U8"
make_file hif8.st <<END
input U8 4,2 0*8
index I16 1,2 3 0
src U8 2,2 1..4
END
run_both scatter_update hif8.st --dtype hifloat8
fails run scatter_update in.st fails.out --dtype hifloat8
fails run scatter_update in.st fails.out --dtype f32

echo "output files"
cp in.st same.st
"$PAGEDKV" run scatter_update same.st same.st && "$ST_TOOL" dump same.st
fails run scatter_update in.st no/such/folder.st
make_file large.st <<END
input U8 4096,1 0*4096
index I32 1,1 7
src U8 1,1 1
END
(
    ulimit -f 1
    exec "$PAGEDKV" run scatter_update large.st fails.out
) 2>&1 | cat
report_files
echo "a name as long as names may be, and the permissions of what was there"
long=$(printf '%0255d' 0)
"$PAGEDKV" run scatter_update in.st "$long" && "$ST_TOOL" dump "$long"
rm "$long"
cp in.st private.st
chmod 600 private.st
"$PAGEDKV" run scatter_update private.st private.st && stat -c %a private.st
ln -s elsewhere fails.out
fails run scatter_update in.st fails.out
mkdir folder
fails run scatter_update in.st folder
echo old >kept.st
library_fails run scatter_update in.st kept.st --dim 0
cat kept.st
ls

echo "options that nobody would notice"
fails info -xh
fails run scatter_update -9
fails verify --list --cpu abc
fails verify --list --run_mode xyz

echo "a bench without a measurement"
fails bench nothing
fails bench scatter --threads 0

echo "standard output that cannot be written"
for arguments in --version --help info; do
    "$PAGEDKV" $arguments >/dev/full 2>message
    echo "exit $?: $(cat message)"
done
