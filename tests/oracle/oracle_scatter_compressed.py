# SPDX-License-Identifier: MIT
"""NumPy as an oracle for the compressed modes of scatter_pa_kv_cache, through the tool."""

import sys

import numpy as np

from tensors import NAMES, run

RNG = np.random.default_rng(20261130)
INDEX = {"I32": np.int32, "I64": np.int64}
failures = 0


def check(what, got, wanted):
    global failures
    if got.shape != wanted.shape or got.tobytes() != wanted.tobytes():
        failures += 1
        print(f"{what}: differs from NumPy's result")


def values(dtype, *shape):
    """Integers of any size; floats of middling size with all bits of their mantissas."""
    if dtype in ("F32", "F16"):
        return RNG.uniform(-8, 8, shape).astype(NAMES[dtype])
    if dtype == "BF16":
        return (RNG.uniform(-8, 8, shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    kind = np.dtype(NAMES[dtype])
    return RNG.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)


def mean(dtype, rows):
    """float32, row after row from zero, one division, to nearest even; integers toward zero."""
    if dtype not in ("F32", "F16", "BF16"):
        total = rows.astype(np.int64).sum(axis=0)
        return (np.sign(total) * (abs(total) // len(rows))).astype(rows.dtype)
    total = np.zeros(rows.shape[1:], np.float32)
    for row in rows:
        total += (row.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else row.astype(np.float32)
    total /= np.float32(len(rows))
    if dtype != "BF16":
        return total.astype(rows.dtype)
    bits = total.view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def thinned(dtype, mode, rows, w, o):
    """What a mode makes of the tokens of one head."""
    if mode == "Alibi":
        return rows[len(rows) - w:]
    if w == 0 or o == -1:
        return rows
    middle = [mean(dtype, rows[o:o + w])[None]] if mode == "Rope" else []
    return np.concatenate([rows[:o]] + middle + [rows[o + w:]])


for case in range(90):
    mode, dtype = ["Alibi", "Rope", "Omni"][case % 3], ["F32", "F16", "BF16", "I8", "U16", "I32"][case // 3 % 6]
    seqs, heads, size = (int(RNG.integers(1, high)) for high in (5, 6, 17))
    dim, vdim = (int(RNG.integers(1, 70)) for _ in range(2))
    lengths = RNG.integers(0, 60, seqs)
    padded = case // 2 % 2
    lens = np.array([[RNG.integers(0, n + 1) for _ in range(heads)] for n in lengths])
    offsets = np.array([[RNG.integers(-1, n - w + 1) for w in row] for n, row in zip(lengths, lens)])
    shape = (seqs, 60, heads) if padded else (int(lengths.sum()), heads)
    sources = {"key": values(dtype, *shape, dim), "value": values(dtype, *shape, vdim)}

    regions, slots, end = {}, np.full((seqs, heads), -1), 0
    for b, h in RNG.permutation([(b, h) for b in range(seqs) for h in range(heads)]):
        if RNG.integers(6) == 0:
            continue
        first = lengths[:b].sum()
        for name, source in sources.items():
            rows = source[b, :lengths[b], h] if padded else source[first:first + lengths[b], h]
            regions[name, b, h] = thinned(dtype, mode, rows, lens[b, h], offsets[b, h])
        slots[b, h] = end
        end += len(regions["key", b, h]) + int(RNG.integers(0, 4))
    blocks = end // size + 1
    caches = {"key": values(dtype, blocks, size, 1, dim), "value": values(dtype, blocks, size, 1, vdim)}

    kinds = [["I32", "I64"][int(k)] for k in RNG.integers(0, 2, 4)]
    tensors = {"key": (dtype, sources["key"]), "value": (dtype, sources["value"]),
               "key_cache": (dtype, caches["key"].copy()), "value_cache": (dtype, caches["value"].copy()),
               "slot_mapping": (kinds[0], slots.astype(INDEX[kinds[0]])),
               "compress_lens": (kinds[1], lens.reshape(-1).astype(INDEX[kinds[1]])),
               "seq_lens": (kinds[2], lengths.astype(INDEX[kinds[2]]))}
    if mode != "Alibi":
        tensors["compress_seq_offset"] = (kinds[3], offsets.astype(INDEX[kinds[3]]))
    out = run("scatter_pa_kv_cache", tensors, scatter_mode=mode,
              run_mode=["native", "sim"][case // 4 % 2], threads=1 + case % 3)
    for (name, b, h), rows in regions.items():
        flat = caches[name].reshape(blocks * size, -1)
        flat[slots[b, h]:slots[b, h] + len(rows)] = rows
    check(f"{mode} {case}: key", out["key_cache"], caches["key"])
    check(f"{mode} {case}: value", out["value_cache"], caches["value"])

print(f"scatter_compressed: 90 cases, {failures} differences")
sys.exit(failures != 0)
