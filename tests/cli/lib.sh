# SPDX-License-Identifier: MIT
#
# Helpers for the tests of the command line; sourced by them, no test itself.

make_file() { "$ST_TOOL" make "$1"; }

# run_both OP IN [--attribute value ...]: native with one and with two threads and sim must write the
# same bytes; prints the tensors.
run_both() {
    op=$1
    in=$2
    shift 2
    "$PAGEDKV" run "$op" "$in" native.out "$@" || return
    "$PAGEDKV" run "$op" "$in" threads.out "$@" --threads 2 || return
    "$PAGEDKV" run "$op" "$in" sim.out "$@" --run_mode sim || return
    cmp native.out threads.out && cmp native.out sim.out && "$ST_TOOL" dump native.out
    rm -f native.out threads.out sim.out
}

# fails ARGUMENT ...: prints the exit status and the message of a pagedkv that fails. A file called
# fails.out, or a temporary one, which it must not have made, is reported.
fails() {
    status=0
    "$PAGEDKV" "$@" 2>message >output || status=$?
    cat output message
    echo "exit $status"
    report_files
}

# The same for a refusal by the library: only the name of its status is shown, not its sentence.
library_fails() {
    status=0
    "$PAGEDKV" "$@" 2>message >output || status=$?
    cat output
    sed 's/^\(pagedkv [a-z_ ]*\): .*\(\[[A-Z_]*\]\).*$/\1: \2/' message
    echo "exit $status"
    report_files
}

report_files() {
    for file in fails.out* .pagedkv.*; do
        [ ! -e "$file" ] || echo "left behind: $file"
    done
}

# Reads what "st_tool dump" prints and shows each tensor as runs of elements that are not 0:
# "key_cache F16 2,4,4,16: 288..303 = 100..115" names elements, then values that rise by one.
nonzero() {
    awk '{
        text = ""
        for (i = 4; i <= NF + 1; i++) {
            if (first >= 0 && (i > NF || $i != last + 1 || $i == 0)) {
                text = text " " first ".." i - 5 " = " value ".." last
                first = -1
            }
            if (i <= NF && $i != 0 && first < 0) {
                first = i - 4
                value = $i
            }
            last = $i
        }
        print $1, $2, $3 ":" text
    }
    BEGIN { first = -1 }'
}

# Reads what "st_tool dump" prints and shows the bit patterns of F32, F16 and BF16 as numbers, with seven digits.
floats() {
    awk '
    function number(bits, fraction_bits, exponent_bits,    scale, fraction, exponent, bias, text) {
        scale = 2 ^ fraction_bits
        fraction = bits % scale
        bits = int(bits / scale)
        exponent = bits % 2 ^ exponent_bits
        bias = 2 ^ (exponent_bits - 1) - 1
        text = int(bits / 2 ^ exponent_bits) ? "-" : ""
        if (exponent == 2 * bias + 1)
            return fraction ? "nan" : text "inf"
        if (exponent == 0)
            return text sprintf("%.7g", fraction / scale * 2 ^ (1 - bias))
        return text sprintf("%.7g", (1 + fraction / scale) * 2 ^ (exponent - bias))
    }
    {
        for (i = 4; i <= NF; i++)
            $i = $2 == "F32" ? number($i, 23, 8) : $2 == "F16" ? number($i, 10, 5) \
                : $2 == "BF16" ? number($i, 7, 8) : $i
        print
    }'
}
