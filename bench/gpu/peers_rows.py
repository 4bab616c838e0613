"""Norms, divergences, rotations, embedding, AdamW and hyper-connections of peers.py, which runs them.

Operands are bf16 unless a comment says otherwise. Shapes and bars are those that peers.py's other operators have: each input
read once, each output written once, at copy speed, is the floor.
"""

import torch
import torch.nn.functional as F

from peers import BF16, DEVICE, EPS, F32, both_passes, error, f64_of, leaves_of, random

ROWS, COLS = 8192, 4096
SIZE = ROWS * COLS * 2


def empties(*like):
    return [torch.empty_like(t) for t in like]


def twice(bench, backward, result):
    """Runs it again: the same bits."""
    first = result.clone()
    bench.once(backward)
    assert torch.equal(first, result), "another result in the second run"


def rms(x, eps=EPS):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def fused_add_rms_norm(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    x, r, dy, ds, w = random(ROWS, COLS), random(ROWS, COLS), random(ROWS, COLS), random(ROWS, COLS), random(COLS)
    y, s, dx, dw = empties(x, x, x, w)
    rstd = random(ROWS, dtype=F32)
    forward = lambda: doors.fused_add_rms_norm_forward(x, r, w, y, s, rstd, ROWS, COLS)
    backward = lambda: doors.fused_add_rms_norm_backward(dy, ds, s, w, rstd, dx, dw, ROWS, COLS)
    bench.once(forward), bench.once(backward)
    s64, w64 = f64_of(s, w)
    reference = rms(s64) * w64
    torch.autograd.backward([reference, s64 * 1], [dy.double(), ds.double()])
    errors = [error(s, x.double() + r.double()), error(y, reference)], [error(dx, s64.grad), error(dw, w64.grad)]
    twice(bench, backward, dw)

    def compiled(x, r, w):
        s = x + r
        return w * rms(s.float()).to(BF16), s

    both_passes(bench, "fused_add_rms_norm", f"{ROWS} x {COLS}", (4 * SIZE, 4 * SIZE), forward, backward,
                lambda x, r, w: liger.liger_fused_add_rms_norm(x, r, w, EPS), compiled, leaves_of(x, r, w), (0.068, 0.085), errors)


def modulated_rms_norm(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    groups = 4
    x, dy, w, scale, shift = random(ROWS, COLS), random(ROWS, COLS), random(COLS), random(groups, COLS), random(groups, COLS)
    y, dx, dw, dscale, dshift = empties(x, x, w, scale, shift)
    rstd = random(ROWS, dtype=F32)
    forward = lambda: doors.modulated_rms_norm_forward(x, w, scale, shift, y, rstd, ROWS, COLS, groups)
    backward = lambda: doors.modulated_rms_norm_backward(dy, x, w, scale, rstd, dx, dw, dscale, dshift, ROWS, COLS, groups)
    bench.once(forward), bench.once(backward)
    x64, w64, scale64, shift64 = f64_of(x, w, scale, shift)
    of_group = lambda t: t.repeat_interleave(ROWS // groups, 0)
    reference = rms(x64) * w64 * (1 + of_group(scale64)) + of_group(shift64)
    reference.backward(dy.double())
    errors = [error(y, reference)], [error(dx, x64.grad), error(dw, w64.grad), error(dscale, scale64.grad), error(dshift, shift64.grad)]
    twice(bench, backward, dscale)
    cut = lambda t: t.view(groups, 1, COLS)
    function = lambda x, w, scale, shift: rms(x.float()).to(BF16) * w * (1 + scale) + shift
    both_passes(bench, "modulated_rms_norm", f"{groups} x {ROWS // groups} x {COLS}", (2 * SIZE, 3 * SIZE), forward, backward,
                lambda x, w, scale, shift: liger.liger_modulated_rms_norm(x, w, scale, shift, EPS), function,
                leaves_of(x.view(groups, -1, COLS), w, cut(scale), cut(shift)), (0.040, 0.080), errors)


def poly_norm(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    x, dy, w, b = random(ROWS, COLS), random(ROWS, COLS), random(3), random(1)
    y, dx, dw, db = empties(x, x, w, b)
    rstd = random(3 * ROWS, dtype=F32)
    forward = lambda: doors.poly_norm_forward(x, w, b, y, rstd, ROWS, COLS)
    backward = lambda: doors.poly_norm_backward(dy, x, w, rstd, dx, dw, db, ROWS, COLS)
    bench.once(forward), bench.once(backward)
    function = lambda x, w, b: w[0] * rms(x**3) + w[1] * rms(x**2) + w[2] * rms(x) + b
    x64, w64, b64 = f64_of(x, w, b)
    reference = function(x64, w64, b64)
    reference.backward(dy.double())
    errors = [error(y, reference)], [error(dx, x64.grad), error(dw, w64.grad)]
    both_passes(bench, "poly_norm", f"{ROWS} x {COLS}", (2 * SIZE, 3 * SIZE), forward, backward,
                lambda x, w, b: liger.liger_poly_norm(x, w, b, EPS, False), lambda x, w, b: function(x.float(), w.float(), b.float()).to(BF16),
                leaves_of(x, w, b), (0.042, 0.080), errors)


def dyt(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    x, dy, gamma, beta = random(ROWS, COLS), random(ROWS, COLS), random(COLS), random(COLS)
    alpha = torch.full((1,), 0.5, dtype=BF16, device=DEVICE)
    y, dx, dalpha, dgamma, dbeta = empties(x, x, alpha, gamma, beta)
    forward = lambda: doors.dyt_forward(x, alpha, gamma, beta, y, ROWS, COLS)
    backward = lambda: doors.dyt_backward(dy, x, alpha, gamma, dx, dalpha, dgamma, dbeta, ROWS, COLS)
    bench.once(forward), bench.once(backward)
    function = lambda x, alpha, gamma, beta: torch.tanh(alpha * x) * gamma + beta
    leaves64 = f64_of(x, alpha, gamma, beta)
    reference = function(*leaves64)
    reference.backward(dy.double())
    errors = [error(y, reference)], [error(a, b.grad) for a, b in zip((dx, dalpha, dgamma, dbeta), leaves64)]
    twice(bench, backward, dgamma)
    both_passes(bench, "dyt", f"{ROWS} x {COLS}", (2 * SIZE, 3 * SIZE), forward, backward, liger.liger_dyt, function,
                leaves_of(x, alpha, gamma, beta), (0.040, 0.070), errors)


def divergences(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    rows, vocab = 4096, 128256
    size = rows * vocab * 2
    x, t = (torch.log_softmax(random(rows, vocab).float(), -1).to(BF16) for _ in range(2))
    dx, loss, upstream = torch.empty_like(x), torch.empty(1, dtype=F32, device=DEVICE), torch.ones(1, dtype=F32, device=DEVICE)

    def gradient(function, of=x):
        leaf = of.clone().requires_grad_()

        def run():
            return torch.autograd.grad(function(leaf), leaf)

        return run

    def report(op, run, bar, error, liger, compiled=None):
        times = bench.turns_ms([run, liger, compiled], graph=False)
        bench.report(op, "with gradient", f"{rows} x {vocab}", 3 * size, *times, bar, error)

    few = slice(0, 64)

    def check(term, count=rows):
        x64 = x[few].double().requires_grad_()
        (term(x64, t[few].double()).sum() / count).backward()
        return error(dx[few], x64.grad)

    def jsd(x, t):
        m = torch.log((x.exp() + t.exp()) / 2)
        return 0.5 * (t.exp() * (t - m) + x.exp() * (x - m))

    run = lambda: doors.jsd_forward(x, t, loss, dx, rows, vocab)
    bench.once(run)
    report("jsd", run, 1.4, check(jsd), gradient(lambda leaf: liger.liger_jsd(leaf, t)),
           gradient(torch.compile(lambda leaf: jsd(leaf.float(), t.float()).sum() / rows)))
    p, q = x.exp(), t.exp()
    run = lambda: doors.tvd_forward(p, q, loss, dx, rows, vocab)
    bench.once(run)
    report("tvd", run, 0.77, "", gradient(lambda leaf: liger.liger_tvd(leaf, q, reduction="batchmean")))
    z, target = random(rows, vocab), torch.randint(0, vocab, (rows,), device=DEVICE)

    def with_labels(distance, teacher):  # of rows
        return lambda z, target: F.cross_entropy(z, target, reduction="sum") + distance(torch.log_softmax(z, -1), teacher[: z.shape[0]].to(z.dtype)).sum()

    for name, distance, teacher, beta in (("cross_entropy_jsd", jsd, t, [0.5]), ("cross_entropy_tvd", lambda x, q: 0.5 * (x.exp() - q).abs(), q, [])):
        run = lambda: getattr(doors, f"{name}_forward")(z, target, teacher, loss, dx, *beta, rows, vocab)
        bench.once(run)
        of_rows = with_labels(distance, teacher)
        z64 = z[few].double().requires_grad_()
        (of_rows(z64, target[few]) / rows).backward()
        report(name, run, None, error(dx[few], z64.grad), None, gradient(torch.compile(lambda leaf: of_rows(leaf.float(), target) / rows), z))
        del z64
    del z
    both = (lambda: doors.kl_div_forward(x, t, loss, rows, vocab)), (lambda: doors.kl_div_backward(t, upstream, dx, rows, vocab))
    for run in both:
        bench.once(run)
    expected = (t.double()[few].exp() * (t.double() - x.double())[few]).sum() / 64
    errors = [], [error(dx[few], -t[few].double().exp() / rows)]
    assert abs(loss.item() - expected.item()) < 0.1 * abs(expected.item())
    both_passes(bench, "kl_div", f"{rows} x {vocab}", (2 * size, 2 * size), *both,
                lambda leaf: liger.liger_kl_div(leaf, t, reduction="batchmean", log_target=True), None, leaves_of(x), (0.48, 0.51), errors)


def rotations(bench):
    import liger_kernel.transformers.functional as liger
    from liger_kernel.ops.llama4_rope import LigerLlama4RopeFunction

    doors = bench.doors
    for b, s, h, kv, d in ((4, 2048, 32, 8, 128), (4, 2048, 32, 8, 64)):
        q, k, angle = random(b, s, h, d), random(b, s, kv, d), random(s, d // 2)
        cos, sin = angle.cos(), angle.sin()
        yq, yk = empties(q, k)
        in_place = [t.clone() for t in (q, k)]  # as Liger does it
        sizes = b, s, h, kv, d
        moved = 2 * (q.numel() + k.numel()) * 2
        bars = (0.043, 0.043) if d == 128 else None
        shape = f"{b} x {s}, {h} + {kv} x {d}"

        def halves(x, c, z):
            u, v = x.chunk(2, -1)
            return torch.cat((u * c - v * z, v * c + u * z), -1)

        forward = lambda: doors.rope_forward(q, k, cos, sin, yq, yk, *sizes)
        backward = lambda: doors.rope_backward(q, k, cos, sin, yq, yk, *sizes)
        c, z = cos.double()[:, None], sin.double()[:, None]
        bench.once(backward)
        errors = [], [error(yq, halves(q.double(), c, -z)), error(yk, halves(k.double(), c, -z))]
        bench.once(forward)
        errors = [error(yq, halves(q.double(), c, z)), error(yk, halves(k.double(), c, z))], errors[1]
        whole = torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]
        rotated = lambda x: torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1)
        compiled = lambda q, k: tuple(x * whole[0][:, None] + rotated(x) * whole[1][:, None] for x in (q, k))
        leaves = leaves_of(q.transpose(1, 2), k.transpose(1, 2))
        both_passes(bench, "rope", shape, (moved, moved), forward, backward, None, compiled, leaves, None, errors)
        forward = lambda: doors.rope_forward(*in_place, cos, sin, *in_place, *sizes)
        backward = lambda: doors.rope_backward(*in_place, cos, sin, *in_place, *sizes)
        both_passes(bench, "rope in place", shape, (moved, moved), forward, backward, lambda q, k: liger.liger_rope(q, k, *whole), None, leaves, bars, ([], []))

        freqs = random(s, d, dtype=F32)
        forward = lambda: doors.llama4_rope_forward(q, k, freqs, yq, yk, *sizes)
        bench.once(forward)
        turn = torch.view_as_complex(freqs.double().view(s, d // 2, 2))[:, None]
        reference = torch.view_as_real(torch.view_as_complex(q.double().view(b, s, h, d // 2, 2)) * turn).flatten(-2)
        errors = [error(yq, reference)]
        complex_freqs = torch.view_as_complex(freqs.view(s, d // 2, 2))
        peer, _ = bench.passes(lambda q, k: LigerLlama4RopeFunction.apply(q, k, complex_freqs), leaves_of(q, k))
        bench.report("llama4_rope", "forward", shape, moved, *bench.turns_ms([forward, peer]), None, bars and bars[0], errors[0])

        angles3 = random(3, b, s, d // 2)
        cos3, sin3 = angles3.cos(), angles3.sin()
        forward = lambda: doors.qwen2vl_mrope_forward(q, k, cos3, sin3, yq, yk, *sizes)
        bench.once(forward)
        sections = [d // 8, 3 * d // 16, 3 * d // 16]
        pick = lambda t: torch.cat([part[i] for i, part in enumerate(t.double().split(sections, -1))], -1)[:, :, None]
        errors = error(yq, halves(q.double(), pick(cos3), pick(sin3)))
        wide = [torch.cat((t, t), -1) for t in (cos3, sin3)]
        peer, _ = bench.passes(lambda q, k: liger.liger_qwen2vl_mrope(q, k, *wide, sections),
                               leaves_of(q.transpose(1, 2), k.transpose(1, 2)))
        bench.report("qwen2vl_mrope", "forward", shape, moved, bench.median_ms(forward), None, None, None, errors)
        forward = lambda: doors.qwen2vl_mrope_forward(*in_place, cos3, sin3, *in_place, *sizes)
        bench.report("qwen2vl_mrope in place", "forward", shape, moved, *bench.turns_ms([forward, peer]), None, bars and bars[0])

        wq, wk, dyq, dyk = random(d), random(d), random(b, s, h, d), random(b, s, kv, d)
        dq, dk, dwq, dwk = empties(q, k, wq, wk)
        forward = lambda: doors.qk_norm_rope_forward(q, k, wq, wk, cos, sin, yq, yk, *sizes)
        backward = lambda: doors.qk_norm_rope_backward(dyq, dyk, q, k, wq, wk, cos, sin, dq, dk, dwq, dwk, *sizes)
        bench.once(forward), bench.once(backward)
        q64, k64, wq64, wk64 = f64_of(q, k, wq, wk)
        references = [halves(rms(q64) * wq64, c, z), halves(rms(k64) * wk64, c, z)]
        torch.autograd.backward(references, [dyq.double(), dyk.double()])
        errors = [error(yq, references[0]), error(yk, references[1])], [error(dq, q64.grad), error(dk, k64.grad), error(dwq, wq64.grad), error(dwk, wk64.grad)]
        twice(bench, backward, dwq)
        del references, q64, k64
        cb, zb = cos[:, None], sin[:, None]
        compiled = lambda q, k, wq, wk: (halves(rms(q.float()).to(BF16) * wq, cb, zb), halves(rms(k.float()).to(BF16) * wk, cb, zb))

        def separately(q, k, wq, wk):
            q, k = liger.liger_rms_norm(q, wq, EPS, in_place=False), liger.liger_rms_norm(k, wk, EPS, in_place=False)
            return liger.liger_rope(q.transpose(1, 2), k.transpose(1, 2), *whole)

        both_passes(bench, "qk_norm_rope", shape, (moved, moved * 3 // 2), forward, backward, separately, compiled, leaves_of(q, k, wq, wk), None, errors)


def embedding(bench):
    from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction

    doors = bench.doors
    vocab, rows, cols = 128256, 8192, 4096
    weight, dy = random(vocab, cols), random(rows, cols)
    ids = torch.randint(0, vocab, (rows,), device=DEVICE)
    ids[::7] = 17  # a token that occurs often
    y, dweight = torch.empty_like(dy), torch.empty_like(weight)
    forward = lambda: doors.embedding_forward(weight, ids, y, vocab, rows, cols)
    backward = lambda: doors.embedding_backward(dy, ids, dweight, vocab, rows, cols)
    bench.once(forward), bench.once(backward)
    assert torch.equal(y, weight[ids])
    reference = torch.zeros(vocab, cols, dtype=F32, device=DEVICE).index_add_(0, ids, dy.float())
    errors = ["0"], [error(dweight, reference)]
    twice(bench, backward, dweight)
    del reference
    moved = rows * cols * 2
    both_passes(bench, "embedding", f"{rows} of {vocab} x {cols}", (2 * moved, moved + weight.numel() * 2), forward, backward,
                lambda w: LigerEmbeddingFunction.apply(w, ids), lambda w: F.embedding(ids, w), leaves_of(weight), (0.037, 0.32), errors)


def adamw(bench):
    doors = bench.doors
    # A Llama of 1.236 G parameters: bf16 throughout, as torch's fused one has it.
    hidden, inner, layers, kv, vocab = 2048, 8192, 16, 512, 128256
    shapes = [(vocab, hidden), (hidden,)]
    shapes += [(hidden, hidden), (kv, hidden), (kv, hidden), (hidden, hidden), (inner, hidden), (inner, hidden), (hidden, inner), (hidden,), (hidden,)] * layers
    w = [0.02 * random(*s) for s in shapes]
    g, m = [random(*s) for s in shapes], [torch.zeros(*s, dtype=BF16, device=DEVICE) for s in shapes]
    v = [torch.zeros_like(t) for t in m]
    pointers = torch.tensor([t.data_ptr() for four in zip(w, g, m, v) for t in four], dtype=torch.int64)
    counts = torch.tensor([t.numel() for t in w], dtype=torch.int64)
    step = lambda: doors.adamw(pointers, counts, len(w), 1)
    small = w[1].double(), g[1].double()
    bench.once(step)
    m64, v64 = 0.1 * small[1], 0.001 * small[1] ** 2
    expected = small[0] - 1e-3 * (m64 / 0.1 / ((v64 / 0.001).sqrt() + 1e-8) + 0.01 * small[0])
    errors = error(w[1], expected)
    moved = 7 * 2 * int(counts.sum())
    ms = bench.median_ms(step, repeats=9)
    torch_w = [t.clone().requires_grad_() for t in w]
    for t, gradient in zip(torch_w, g):
        t.grad = gradient
    optimizer = torch.optim.AdamW(torch_w, fused=True)
    bench.report("adamw", "step", f"{int(counts.sum()) / 1e9:.3f} G", moved, ms, None, bench.median_ms(optimizer.step, graph=False, repeats=9), 4.2, errors)


def group_norm(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    n, c, positions, groups = 32, 256, 4096, 32
    x, dy, w, b = random(n, c, positions), random(n, c, positions), random(c), random(c)
    y, dx, dw, db = empties(x, x, w, b)
    mean, rstd = random(n * groups, dtype=F32), random(n * groups, dtype=F32)
    forward = lambda: doors.group_norm_forward(x, w, b, y, mean, rstd, n, c, positions, groups)
    backward = lambda: doors.group_norm_backward(dy, x, w, mean, rstd, dx, dw, db, n, c, positions, groups)
    bench.once(forward), bench.once(backward)
    x64, w64, b64 = f64_of(x, w, b)
    reference = F.group_norm(x64, groups, w64, b64, 1e-6)
    reference.backward(dy.double())
    errors = [error(y, reference)], [error(dx, x64.grad), error(dw, w64.grad), error(db, b64.grad)]
    twice(bench, backward, dw)
    size = x.numel() * 2
    both_passes(bench, "group_norm", f"{n} x {c} x {positions}, {groups} groups", (2 * size, 3 * size), forward, backward,
                lambda x, w, b: liger.liger_group_norm(x, w, b, c, groups, 1e-6), lambda x, w, b: F.group_norm(x, groups, w, b, 1e-6),
                leaves_of(x, w, b), (0.045, 0.075), errors)


def sparsemax(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    x, dy = random(ROWS, COLS), random(ROWS, COLS)
    y, dx = empties(x, x)
    forward = lambda: doors.sparsemax_forward(x, y, ROWS, COLS)
    backward = lambda: doors.sparsemax_backward(dy, y, dx, ROWS, COLS)
    bench.once(forward), bench.once(backward)
    x64 = x.double()
    z = x64.sort(-1, descending=True).values
    above = z.cumsum(-1) - 1
    k = torch.arange(1, COLS + 1, device=DEVICE)
    support = (z * k > above).sum(-1, keepdim=True)
    reference = (x64 - above.gather(-1, support - 1) / support).relu()
    inside = (y > 0).double()
    d64 = dy.double()
    errors = [error(y, reference)], [error(dx, inside * (d64 - (d64 * inside).sum(-1, keepdim=True) / inside.sum(-1, keepdim=True)))]
    del x64, z, above, reference
    both_passes(bench, "sparsemax", f"{ROWS} x {COLS}", (2 * SIZE, 3 * SIZE), forward, backward, liger.liger_sparsemax, None, leaves_of(x),
                (0.060, 0.055), errors)


def attn_res(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    n = 8
    v, dy, query, norm = random(n, ROWS, COLS), random(ROWS, COLS), random(COLS) / 64, random(COLS)
    y, dv, dquery, dnorm = empties(dy, v, query, norm)
    alpha, rstd = random(n * ROWS, dtype=F32), random(n * ROWS, dtype=F32)
    forward = lambda: doors.attn_res_forward(v, query, norm, y, alpha, rstd, n, ROWS, COLS)
    backward = lambda: doors.attn_res_backward(dy, v, query, norm, alpha, rstd, dv, dquery, dnorm, n, ROWS, COLS)
    bench.once(forward), bench.once(backward)
    few = slice(0, 512)
    function = lambda v, query, norm: (((rms(v) * norm) @ query).softmax(0)[..., None] * v).sum(0)
    v64, query64, norm64 = v[:, few].double().requires_grad_(), query.double(), norm.double()
    reference = function(v64, query64, norm64)
    reference.backward(dy[few].double())
    errors = [error(y[few], reference)], [error(dv[:, few], v64.grad)]
    twice(bench, backward, dquery)
    moved = (n + 1) * SIZE, (2 * n + 1) * SIZE
    both_passes(bench, "attn_res", f"{n} x {ROWS} x {COLS}", moved, forward, backward,
                lambda v, q, w: liger.liger_attn_res(v.view(n, 4, -1, COLS), q, w), None, leaves_of(v, query, norm), (0.18, 0.40), errors)


def hyper_connections(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    n, c = 4, 2048
    unit = ROWS * c * 2
    x, f, dy, dys = random(ROWS, n, c), random(ROWS, c), random(ROWS, c), random(ROWS, n, c)
    pre, post, res = (torch.rand(ROWS, *s, dtype=F32, device=DEVICE) for s in ((n,), (n,), (n, n)))
    y, dx, dpre = empties(f, x, pre)
    forward = lambda: doors.mhc_pre_forward(x, pre, y, ROWS, n, c)
    backward = lambda: doors.mhc_pre_backward(dy, x, pre, dx, dpre, ROWS, n, c)
    bench.once(forward), bench.once(backward)
    x64, pre64 = f64_of(x, pre)
    reference = (pre64[..., None] * x64).sum(1)
    reference.backward(dy.double())
    errors = [error(y, reference)], [error(dx, x64.grad), error(dpre, pre64.grad)]
    cut = lambda t: t.view(4, -1, *t.shape[1:])
    both_passes(bench, "mhc_pre", f"{ROWS} x {n} x {c}", (5 * unit, 9 * unit), forward, backward, liger.liger_mhc_pre, None,
                leaves_of(cut(x), cut(pre)), (0.06, 0.12), errors)
    ys, dx, df, dpost, dres = empties(x, x, f, post, res)
    forward = lambda: doors.mhc_post_res_forward(x, f, post, res, ys, ROWS, n, c)
    backward = lambda: doors.mhc_post_res_backward(dys, x, f, post, res, dx, df, dpost, dres, ROWS, n, c)
    bench.once(forward), bench.once(backward)
    x64, f64, post64, res64 = f64_of(x, f, post, res)
    reference = res64 @ x64 + post64[..., None] * f64[:, None]
    reference.backward(dys.double())
    errors = [error(ys, reference)], [error(a, b.grad) for a, b in zip((dx, df, dpost, dres), (x64, f64, post64, res64))]
    both_passes(bench, "mhc_post_res", f"{ROWS} x {n} x {c}", (9 * unit, 14 * unit), forward, backward, liger.liger_mhc_post_res, None,
                leaves_of(cut(x), cut(f), cut(post), cut(res)), (0.10, 0.20), errors)


def mhc_coeffs(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    n, c = 4, 2048
    cols, mixes = n * c, n * n + 2 * n
    x, phi = random(ROWS, cols), random(cols, mixes) / 64
    b, alpha = random(mixes, dtype=F32), random(3, dtype=F32)
    shapes = (n,), (n,), (n * n,)
    h, dh = ([random(ROWS, *s, dtype=F32) for s in shapes] for _ in range(2))
    mix, rstd = random(ROWS, mixes, dtype=F32), random(ROWS, dtype=F32)
    dx, dphi, db, dalpha = empties(x, phi, b, alpha)
    forward = lambda: doors.mhc_coeffs_forward(x, phi, b, alpha, *h, mix, rstd, ROWS, cols)
    backward = lambda: doors.mhc_coeffs_backward(*dh, x, phi, b, alpha, mix, rstd, dx, dphi, db, dalpha, ROWS, cols)
    bench.once(forward), bench.once(backward)

    def coefficients(x, phi, b, alpha):
        z = rms(x) @ phi * torch.cat([alpha[k].expand(s[0]) for k, s in enumerate(shapes)]) + b
        pre, post, m = z.split([s[0] for s in shapes], -1)
        m = m.view(-1, n, n).softmax(-1) + 1e-6
        m = m / (m.sum(-2, keepdim=True) + 1e-6)
        for _ in range(19):
            m = m / (m.sum(-1, keepdim=True) + 1e-6)
            m = m / (m.sum(-2, keepdim=True) + 1e-6)
        return pre.sigmoid(), 2 * post.sigmoid(), m.flatten(-2)

    leaves64 = f64_of(x, phi, b, alpha)
    references = coefficients(*leaves64)
    torch.autograd.backward(references, [d.double() for d in dh])
    errors = [error(a, r) for a, r in zip(h, references)], [error(a, r.grad) for a, r in zip((dx, dphi, db, dalpha), leaves64)]
    twice(bench, backward, dphi)
    size = x.numel() * 2
    both_passes(bench, "mhc_coeffs", f"{ROWS} x {n} x {c}", (size, 2 * size), forward, backward,
                lambda x, phi, b, a, o, r: liger.liger_mhc_coeffs(x.view(4, -1, n, c), phi, b, a, o, r), None,
                leaves_of(x, phi, b, alpha[0], alpha[1], alpha[2]), (0.10, 0.35), errors)


OPERATORS = [fused_add_rms_norm, modulated_rms_norm, poly_norm, dyt, divergences, rotations, embedding, adamw, group_norm, sparsemax,
             attn_res, hyper_connections, mhc_coeffs]
