"""Attention of backend cuda beside cuDNN and flash attention of PyTorch, which peers.py runs with the others; errors are of f64."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from peers import BF16, DEVICE, F32, error, random


def reference(q, k, v, d_o, left, sinks):
    """o, lse and gradients in f64 of [batch, seq, heads, dim], an entry of the batch at a time."""
    m, n, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    at = torch.arange(m, device=DEVICE)[:, None] + (n - m)
    keys = torch.arange(n, device=DEVICE)[None, :]
    seen = (keys <= at) & ((keys >= at - left) if left else True)
    all_of = [[] for _ in range(6)]
    s = None if sinks is None else sinks.double().requires_grad_()
    for b in range(q.shape[0]):
        a, c, e = (t[b].double().transpose(0, 1).requires_grad_() for t in (q, k, v))
        scores = a @ c.repeat_interleave(group, 0).transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~seen, float("-inf"))
        both = scores if s is None else torch.cat([scores, s[:, None, None].expand(-1, m, 1)], -1)
        lse = both.logsumexp(-1)
        o = (scores - lse[..., None]).exp() @ e.repeat_interleave(group, 0)
        found = torch.autograd.grad(o, (a, c, e) + (() if s is None else (s,)), d_o[b].double().transpose(0, 1))
        for to, part in zip(all_of, (o.detach(), lse.detach(), *found)):
            to.append(part)
    o, dq, dk, dv = (torch.stack(all_of[i]).transpose(1, 2) for i in (0, 2, 3, 4))
    return o, torch.stack(all_of[1]), dq, dk, dv, sum(all_of[5]) if all_of[5] else None


def attention(bench):
    doors = bench.doors
    cases = [  # batch, queries, keys, heads, kv_heads, dim, left, sinks, type, bars
        (4, 2048, 2048, 32, 8, 128, 0, False, BF16, (0.258, 0.866)),
        (4, 2048, 2048, 32, 8, 64, 0, False, BF16, None),
        (2, 1024, 1024, 8, 2, 128, 0, False, torch.float16, None),
        (1, 512, 1536, 8, 8, 64, 0, False, BF16, None),
        (1, 1000, 1000, 8, 2, 128, 255, False, BF16, None),
        (2, 384, 384, 8, 2, 64, 0, True, BF16, None),
        (1, 96, 96, 4, 4, 40, 0, False, BF16, None),
        (1, 8, 700, 8, 2, 64, 0, False, BF16, None),
        (1, 200, 200, 4, 2, 36, 0, True, BF16, None),
        (2, 256, 256, 8, 2, 64, 0, True, F32, None),
    ]
    names = {BF16: "attention", torch.float16: "attention_f16", F32: "attention_f32"}
    for b, m, n, h, kv, d, left, with_sinks, dtype, bars in cases:
        q, d_o = random(b, m, h, d, dtype=dtype), random(b, m, h, d, dtype=dtype)
        k, v = random(b, n, kv, d, dtype=dtype), random(b, n, kv, d, dtype=dtype)
        o, dq, dk, dv = (torch.full_like(t, float("nan")) for t in (q, q, k, v))
        lse = torch.full((b, h, m), float("nan"), device=DEVICE)
        sinks, dsinks = (random(h, dtype=F32), random(h, dtype=F32)) if with_sinks else (None, None)
        extents = (b, m, n, h, kv, d, left)
        name = names[dtype]
        shape = f"{b} x {m}, {h}/{kv} x {d}" + (f", {n} keys" if n != m else "") + (f", window {left}" if left else "") + (
            ", sinks" if with_sinks else "") + f" {str(dtype)[6:]}"
        given = sinks if with_sinks else 0
        forward = lambda: getattr(doors, name + "_forward")(q, k, v, given, o, lse, *extents)
        backward = lambda: getattr(doors, name + "_backward")(d_o, q, k, v, o, lse, given, dq, dk, dv, dsinks if with_sinks else 0, *extents)
        try:
            bench.once(forward), bench.once(backward)
        except Exception as problem:
            print("FAILED", shape, repr(problem)[:300], flush=True)
            continue
        expected = reference(q, k, v, d_o, left, sinks)
        errors = []
        for got, want in zip((o, lse, dq, dk, dv, dsinks), expected):
            if want is None:
                continue
            relative = ((got.double() - want).norm() / want.norm()).item()
            errors.append(f"{relative:.1e}" + ("" if relative < (2e-2 if dtype == BF16 else 3e-3) else " WRONG"))
        first = [t.clone() for t in (o, dq, dk, dv)]
        bench.once(forward), bench.once(backward)
        same = "".join(c if torch.equal(x, y) else "-" for c, x, y in zip("oqkv", first, (o, dq, dk, dv)))
        del expected, first
        peers = [(None, None), (None, None)]  # in the columns of Liger and torch.compile: cuDNN and flash attention of PyTorch
        if bars or (m == n and not left and not with_sinks and dtype != F32 and m > 1000):
            leaves = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]

            def attention_by(backend):
                def run(*leaves):
                    with sdpa_kernel(backend):
                        return F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)

                return bench.passes(run, leaves)

            peers = [attention_by(backend) for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)]
        for mode, own, which, error in (("forward", forward, 0, " ".join(errors[:2])),
                                    ("backward", backward, 1, " ".join(errors[2:]) + " same bits " + same)):
            bench.report("attention", mode, shape, None, *bench.turns_ms([own, *(of[which] for of in peers)]), bars and bars[which], error)


OPERATORS = [attention]
