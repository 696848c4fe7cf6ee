# SPDX-License-Identifier: MIT
"""NumPy's indexing as an oracle for scatter, gather, block copies and layouts, through the tool."""

import sys

import numpy as np

from tensors import NAMES, run

RNG = np.random.default_rng(20261129)
failures = 0


def check(what, got, wanted):
    global failures
    if got.shape != wanted.shape or got.tobytes() != wanted.tobytes():
        failures += 1
        print(f"{what}: differs from NumPy's result")


def values(dtype, *shape):
    kind = np.dtype(NAMES[dtype])
    return RNG.integers(0, 256, int(np.prod(shape)) * kind.itemsize, np.uint8).view(kind).reshape(shape)


def to_nhd(cache, layout, heads):
    """Any layout as [blocks, block_size, heads, head_size]."""
    if layout == "HND":
        return cache.transpose(0, 2, 1, 3)
    if layout == "TRANSPOSED":
        return cache.transpose(0, 3, 1, 2)
    if layout == "X_PACKED":
        blocks, heads, _, size, _ = cache.shape
        return cache.transpose(0, 3, 1, 2, 4).reshape(blocks, size, heads, -1)
    if layout == "PA_NZ":
        blocks, _, size, _ = cache.shape
        return cache.transpose(0, 2, 1, 3).reshape(blocks, size, heads, -1)
    return cache


def from_nhd(cache, layout):
    blocks, size, heads, dim = cache.shape
    if layout == "HND":
        return cache.transpose(0, 2, 1, 3)
    if layout == "TRANSPOSED":
        return cache.transpose(0, 2, 3, 1)
    if layout == "X_PACKED":
        x = 16 // cache.itemsize
        return cache.reshape(blocks, size, heads, dim // x, x).transpose(0, 2, 3, 1, 4)
    if layout == "PA_NZ":
        fragment = 32 // cache.itemsize
        return cache.reshape(blocks, size, heads * dim // fragment, fragment).transpose(0, 2, 1, 3)
    return cache


LAYOUTS = ["NHD", "HND", "PA_NZ", "X_PACKED", "TRANSPOSED"]

for case in range(60):
    dtype = ["F32", "F16", "BF16", "I8"][case % 4]
    blocks, size, heads = (int(RNG.integers(low, high)) for low, high in ((1, 9), (1, 20), (1, 5)))
    dim, vdim = (32 * int(RNG.integers(1, 5)) for _ in range(2))
    tokens = int(RNG.integers(0, 3 * blocks * size))
    klayout, vlayout = LAYOUTS[case % 5], LAYOUTS[case // 5 % 5]
    keys, vals = values(dtype, blocks, size, heads, dim), values(dtype, blocks, size, heads, vdim)
    key, value = values(dtype, tokens, heads, dim), values(dtype, tokens, heads, vdim)
    slots = RNG.integers(-2, blocks * size, tokens).astype([np.int32, np.int64][case % 2])
    out = run("scatter_pa_kv_cache",
              {"key": (dtype, key), "value": (dtype, value),
               "key_cache": (dtype, from_nhd(keys, klayout)),
               "value_cache": (dtype, from_nhd(vals, vlayout)),
               "slot_mapping": (["I32", "I64"][case % 2], slots)},
              key_layout=klayout, value_layout=vlayout, run_mode=["native", "sim"][case // 2 % 2],
              threads=1 + case % 3)
    for t, slot in enumerate(slots):
        if slot >= 0:
            keys[slot // size, slot % size] = key[t]
            vals[slot // size, slot % size] = value[t]
    check(f"scatter {case}: key", to_nhd(out["key_cache"], klayout, heads), keys)
    check(f"scatter {case}: value", to_nhd(out["value_cache"], vlayout, heads), vals)

    seqs, width = int(RNG.integers(1, 4)), int(RNG.integers(1, 5))
    table = RNG.integers(0, blocks, (seqs, width)).astype(np.int32)
    offsets = RNG.integers(0, width * size + 1, seqs).astype(np.int32)
    lengths = np.array([RNG.integers(0, width * size - offset + 1) for offset in offsets], np.int32)
    out = run("gather_pa_kv_cache",
              {"key_cache": (dtype, from_nhd(keys, klayout)),
               "value_cache": (dtype, from_nhd(vals, vlayout)), "block_tables": ("I32", table),
               "seq_lens": ("I32", lengths), "seq_offset": ("I32", offsets)},
              key_layout=klayout, value_layout=vlayout, is_seq_lens_cumsum=0, num_kv_heads=heads)
    where = [(table[b, p // size], p % size) for b in range(seqs)
             for p in range(offsets[b], offsets[b] + lengths[b])]
    rows = tuple(np.array([w[i] for w in where], int) for i in (0, 1))
    check(f"gather {case}: key", out["key"], keys[rows].reshape(-1, heads, dim))
    check(f"gather {case}: value", out["value"], vals[rows].reshape(-1, heads, vdim))

    if blocks > 1:
        order = RNG.permutation(blocks).astype(np.int64)
        pairs = order[:blocks // 2 * 2].reshape(-1, 2)
        out = run("copy_blocks", {"key_cache": (dtype, keys), "value_cache": (dtype, vals),
                                  "block_mapping": ("I64", pairs)})
        keys[pairs[:, 1]] = keys[pairs[:, 0]]
        check(f"copy_blocks {case}", out["key_cache"], keys)

    out = run("convert_layout", {"cache": (dtype, from_nhd(keys, klayout))}, **{"from": klayout},
              to=vlayout, num_kv_heads=heads)
    check(f"convert_layout {case}", to_nhd(out["cache"], vlayout, heads), keys)

print(f"scatter_gather: 60 cases, {failures} differences")
sys.exit(failures != 0)
