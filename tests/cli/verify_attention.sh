# SPDX-License-Identifier: MIT
# verify: the cases of paged attention, without their times; groups of cases.
. "$TESTS/lib.sh"

verdicts() {
    "$PAGEDKV" verify --threads 2 "$@" >out.txt
    echo "exit $?"
    sed -n 's/^\(\[PRECISION_[A-Z]*\]\) *\([a-z0-9_]*\) .* error [^ ]*, bound [^ ]*$/\1 \2/p' out.txt
}

echo "native"
verdicts attention
echo "sim"
verdicts --run_mode sim attention_layouts attention_mask attention_window_right
echo "groups"
"$PAGEDKV" verify --threads 2 attention_layouts key_only >out.txt
sed -n 's/^\(\[PRECISION_[A-Z]*\]\) *\([a-z0-9_]*\) .*/\1 \2/p' out.txt
fails verify attentio
