# SPDX-License-Identifier: MIT
"""NumPy and, where it is installed, PyTorch in double precision as oracles for paged attention, through the tool."""

import sys

import numpy as np

from tensors import run

try:
    import torch
except ImportError:
    torch = None

RNG = np.random.default_rng(20261201)
LAYOUTS = ["NHD", "HND", "PA_NZ", "X_PACKED", "TRANSPOSED"]
# Half of the last bit of a number near 1.
ROUNDING = {"F32": 2.0 ** -24, "F16": 2.0 ** -11, "BF16": 2.0 ** -8}
failures = 0


def check(what, got, wanted, rounding, slack):
    """Each number within its rounding and the slack for float32 sums; what is not finite must be equal."""
    global failures
    finite = np.isfinite(wanted)
    with np.errstate(invalid="ignore"):
        close = np.abs(got - wanted) <= rounding * np.abs(wanted) + slack
    if got.shape != wanted.shape or not np.array_equal(got[~finite], wanted[~finite]) or not close[finite].all():
        failures += 1
        print(f"{what}: differs by {np.abs(got - wanted)[finite].max(initial=0)}")


def encode(dtype, values):
    """As the tool takes them: bfloat16 as uint16, cut off."""
    if dtype == "BF16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype])


def decode(dtype, codes):
    if dtype == "BF16":
        return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return codes.astype(np.float64)


def draw(dtype, *shape):
    return encode(dtype, RNG.normal(size=shape))


def scores(query, key, bias, scale, softcap):
    """query [n, H, D], key [L, KV, D], bias [H, n, L] with minus infinity where nothing is seen: [H, n, L]"""
    key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    products = np.einsum("nhd,lhd->hnl", query, key) * scale
    return (softcap * np.tanh(products / softcap) if softcap else products) + bias


def attention(s, value, sinks):
    """Outputs [n, H, D] and log-sum-exps [n, H] of scores [H, n, L]; rows that see nothing are zeros."""
    value = np.repeat(value, s.shape[0] // value.shape[1], axis=1)
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], s.shape[:2] + (1,))
        s = np.concatenate([s, column], axis=2)
        value = np.concatenate([value, np.zeros_like(value[:1])])
    top = s.max(axis=2, keepdims=True, initial=-np.inf)
    weights = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, np.log(total) + top, -np.inf)[..., 0].T
    return np.einsum("hnl,lhd->nhd", weights / np.where(total > 0, total, 1), value), lse


def torch_attention(query, key, value, bias, scale, softcap, sinks):
    """attention(scores(...)) by PyTorch's batched products, softmax and logsumexp, in double precision."""
    group = query.shape[1] // key.shape[1]
    q, k, v = (torch.from_numpy(x.transpose(1, 0, 2).copy()) for x in (query, key, value))
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    s = torch.bmm(q, k.mT) * scale
    s = (softcap * torch.tanh(s / softcap) if softcap else s) + torch.from_numpy(bias)
    if sinks is not None:
        s = torch.cat([s, torch.from_numpy(sinks).double()[:, None, None].expand(-1, s.shape[1], 1)], 2)
    weights = torch.softmax(s, 2).nan_to_num(0)
    return torch.bmm(weights[..., :v.shape[1]], v).transpose(0, 1).numpy(), torch.logsumexp(s, 2).T.numpy()


def bias_of(heads, queries, length, causal, left, right, slopes, mask):
    """ALiBi, windows and the mask of one sequence: [H, n, L]"""
    distance = np.arange(length)[None] - (length - queries + np.arange(queries))[:, None]
    seen = np.ones(distance.shape, bool)
    if causal:
        seen &= distance <= 0
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    bias = np.zeros((heads,) + distance.shape)
    if slopes is not None:
        bias += slopes[:, None, None] * distance
    if mask is not None:
        width = mask.shape[1]
        whole = np.zeros((queries, max(length, width)))
        whole[:, whole.shape[1] - width:] = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
        bias += whole[:, whole.shape[1] - length:]
    return np.where(seen, bias, -np.inf)


def draw_mask(tokens):
    width = int(RNG.choice([1, 20, 400]))
    seen = RNG.random((tokens, width)) < 0.8
    if RNG.integers(2):
        return "BOOL", seen
    return "F32", np.where(seen, RNG.normal(size=seen.shape), -np.inf).astype(np.float32)


checked_by_torch = 0
for case in range(80):
    kv_heads = int(RNG.choice([1, 2, 3, 8]))
    heads = kv_heads * int(RNG.choice([1, 3, 4]))
    dim, vdim = (int(RNG.choice([32, 64, 128])) for _ in range(2))
    kdtype, vdtype, qdtype = (["F32", "F16", "BF16"][int(k)] for k in RNG.integers(0, 3, 3))
    klayout, vlayout = LAYOUTS[case % 5], LAYOUTS[case // 5 % 5]
    size = int(RNG.choice([1, 5, 16, 48]))
    mla = case % 7 == 3
    if mla:
        vdim, vdtype = int(RNG.integers(1, dim + 1)), kdtype
    seqs = int(RNG.integers(1, 5))
    lengths = RNG.choice([1, 3, 40, 257, 300], seqs)
    queries = np.array([RNG.integers(0, min(n, 20) + 1) for n in lengths])
    starts = np.concatenate([[0], np.cumsum(queries)])
    causal, base = int(case % 4 != 1), ["e", "2"][case // 2 % 2]
    left = int(RNG.choice([-1, -1, 0, 16, 256]))
    right = -1 if causal else int(RNG.choice([-1, 0, 7]))
    scale = float(np.float32(RNG.choice([1 / np.sqrt(dim), 0.25])))
    softcap = float(RNG.choice([0, 0, 5, 50]))
    index = [("I32", np.int32), ("I64", np.int64)][case % 2]

    counts = -(-lengths // size)
    order = RNG.permutation(int(counts.sum()) + 2)
    table = np.full((seqs, int(counts.max()) + 1), -7)
    keys = encode(kdtype, np.full((len(order), size, kv_heads, dim), np.nan))
    values = encode(vdtype, np.full((len(order), size, kv_heads, vdim), np.nan))
    rows = []
    for b, length in enumerate(lengths):
        first = int(counts[:b].sum())
        table[b, :counts[b]] = order[first:first + counts[b]]
        key, value = draw(kdtype, length, kv_heads, dim), draw(vdtype, length, kv_heads, vdim)
        where = table[b, np.arange(length) // size], np.arange(length) % size
        keys[where], values[where] = key, value
        rows.append((decode(kdtype, key), decode(kdtype, key[..., :vdim]) if mla else decode(vdtype, value)))

    query = draw(qdtype, starts[-1], heads, dim)
    tensors = {"query": (qdtype, query), "block_table": (index[0], table.astype(index[1])),
               "seq_lens": (index[0], lengths.astype(index[1])),
               "query_start_loc": (index[0], starts.astype(index[1]))}
    caches = {"key_cache": (kdtype, keys, klayout), "value_cache": (vdtype, values, vlayout)}
    if mla:
        del caches["value_cache"]
    for name, (dtype, cache, layout) in caches.items():
        cache = run("convert_layout", {"cache": (dtype, cache)}, **{"from": "NHD"}, to=layout)["cache"]
        tensors[name] = dtype, cache
    slopes = sinks = mask = None
    if case % 3 == 1:
        slopes = RNG.uniform(-0.1, 0.5, heads).astype(np.float32)
        tensors["alibi_slopes"] = "F32", slopes
    if case % 4 == 2:
        sinks = RNG.normal(size=heads).astype(np.float32)
        tensors["sinks"] = "F32", sinks
    if case % 5 == 4:
        kind, mask = draw_mask(starts[-1])
        tensors["mask"] = kind, mask

    options = {"softcap": softcap} if softcap else {}
    if mla:
        options["value_head_size"] = vdim
    out = run("paged_attention", tensors, key_layout=klayout, value_layout=klayout if mla else vlayout,
              num_kv_heads=kv_heads, scale=scale, causal=causal, window_left=left, window_right=right,
              lse_base=base, run_mode=["native", "sim"][case // 3 % 2], threads=1 + case % 3, **options)
    got = decode(qdtype, out["out"])
    for b, (key, value) in enumerate(rows):
        part = slice(starts[b], starts[b + 1])
        bias = bias_of(heads, int(queries[b]), int(lengths[b]), causal, left, right, slopes,
                       None if mask is None else mask[part])
        q = decode(qdtype, query[part])
        wanted, lse = attention(scores(q, key, bias, scale, softcap), value, sinks)
        check(f"case {case}, sequence {b}: out", got[part], wanted, ROUNDING[qdtype], 2e-5)
        got_lse = out["lse"][part].astype(float) * (np.log(2) if base == "2" else 1)
        check(f"case {case}, sequence {b}: lse", got_lse, lse, ROUNDING["F32"], 1e-5)
        if torch is not None and queries[b] > 0:
            wanted, lse = torch_attention(q, key, value, bias, scale, softcap, sinks)
            check(f"case {case}, sequence {b}: out by PyTorch", got[part], wanted, ROUNDING[qdtype], 2e-5)
            check(f"case {case}, sequence {b}: lse by PyTorch", got_lse, lse, ROUNDING["F32"], 1e-5)
            checked_by_torch += 1

for case in range(20):
    states, shape, base = int(RNG.integers(1, 5)), (int(RNG.integers(1, 9)), 3, 40), ["e", "2"][case % 2]
    dtype = ["F32", "F16", "BF16"][case % 3]
    outs = [draw(dtype, *shape) for _ in range(states)]
    lses = [RNG.normal(size=shape[:2]).astype(np.float32) for _ in range(states)]
    lses[0][0, 0] = -np.inf
    tensors = {}
    for i in range(states):
        tensors[f"out_{i}"], tensors[f"lse_{i}"] = (dtype, outs[i]), ("F32", lses[i])
    result = run("merge_states", tensors, lse_base=base)
    unit = np.log(2) if base == "2" else 1.0
    s = np.stack(lses, 2).astype(float) * unit
    top = s.max(axis=2, keepdims=True)
    weights = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=2, keepdims=True)
    wanted = sum(w[..., None] * decode(dtype, o) for w, o in
                 zip(np.moveaxis(weights / np.where(total > 0, total, 1), 2, 0), outs))
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, np.log(total) + top, -np.inf)[..., 0] / unit
    check(f"merge {case}: out", decode(dtype, result["out"]), wanted, ROUNDING[dtype], 2e-6)
    check(f"merge {case}: lse", result["lse"].astype(float), lse, ROUNDING["F32"], 2e-6)

print(f"paged_attention: 100 cases, {failures} differences; "
      + (f"{checked_by_torch} sequences by PyTorch, too" if torch else "PyTorch is not installed"))
sys.exit(failures != 0)
