"""Operators on heads, over depth and of layers that are declared in Python, and the options of gates, rope and
experts."""
import torch
import torch.nn.functional as F

from case import Case
from tigon_torch import ops

f64 = torch.float64
_generator = torch.Generator().manual_seed(17)
Q, K = (2, 4, 5, 8), (2, 2, 5, 8)
_angle = torch.rand(2, 5, 4, generator=_generator, dtype=f64) * 6
COS, SIN = (torch.cat([t, t], -1) for t in (_angle.cos(), _angle.sin()))
EXPERTS = torch.tensor([[0, 2], [2, 1], [1, 0], [0, 2], [2, 0], [0, 1]])  # of four, the last one unused


def tables(x):
    return (COS, SIN) if x.dtype == f64 else (COS.float(), SIN.float())


def halves(x, cos, sin):
    a, b = x.chunk(2, -1)
    c, s = (t.to(x.dtype)[:, None, :, : x.shape[-1] // 2] for t in (cos, sin))
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def neighbours(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    c, s = (t.to(x.dtype)[:, None, :, : x.shape[-1] // 2] for t in (cos, sin))
    return torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)


def last(x, cos, sin, turn=halves, columns=4):
    return torch.cat([x[..., :-columns], turn(x[..., -columns:], cos, sin)], -1)


def rms(x, w=1.0, offset=0.0):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (offset + w)


def neighborhood_formula(q, k, v, kernel_size, dilation, scale=None):
    i = torch.arange(q.shape[2])
    off = i[None] - i[:, None]
    seen = (off % dilation == 0) & (off.abs() <= dilation * (kernel_size // 2))
    s = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    return s.masked_fill(~seen, -torch.inf).softmax(-1) @ v


def multi_token_formula(scores, w, b=None, padding=1, **options):
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    p = torch.where(causal, scores.masked_fill(~causal, -torch.inf).softmax(-1), 0)
    y = F.conv2d(p, w, b, padding=padding, **options)
    return torch.where(torch.ones(y.shape[-2:], dtype=torch.bool).tril(), y, 0)


def attn_res_formula(v, query, norm):
    score = (rms(v, norm) * query).sum(-1)
    return (score.softmax(0)[..., None] * v).sum(0)


def mhc_formula(x, phi, b, pre, post, res, tmax=20):
    n = x.shape[-2]
    flat = x.flatten(-2)
    mix = torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6) * (flat @ phi)
    l_pre, l_post, l_res = mix.split([n, n, n * n], -1)
    b_pre, b_post, b_res = b.split([n, n, n * n])
    m = (res * l_res + b_res).unflatten(-1, (n, n)).softmax(-1) + 1e-6
    m = m / (m.sum(-2, keepdim=True) + 1e-6)
    for _ in range(tmax - 1):
        m = m / (m.sum(-1, keepdim=True) + 1e-6)
        m = m / (m.sum(-2, keepdim=True) + 1e-6)
    return (pre * l_pre + b_pre).sigmoid(), 2 * (post * l_post + b_post).sigmoid(), m


def mhc_apply_formula(x, f, pre, post, res):
    return res @ x + post[..., None] * f[..., None, :], (pre[..., None] * x).sum(-2)


def mhc_forward_formula(x, *coefficients):
    pre, post, res = mhc_formula(x, *coefficients)
    return mhc_apply_formula(x, torch.sin((pre[..., None] * x).sum(-2)), pre, post, res)[0]


def swiglu_formula(g, u, gate=1.0, down=1.0, limit=torch.inf, slope=1.0, offset=0.0):
    g = (gate * g).clamp(max=limit)
    return down * g * (slope * g).sigmoid() * (u.clamp(-limit, limit) + offset)


BIAS = torch.randn(12, generator=_generator) / 4


def bias_of(z):
    return BIAS.to(f64) if z.dtype == f64 else BIAS


def router_formula(z, score, k, bias=0.0, normalise=True, scale=1.0, groups=1, kept_groups=1, largest=False):
    """Weights of the chosen experts, the largest score first."""
    s = {"softmax": lambda: z.softmax(-1), "sigmoid": z.sigmoid, "sqrt_softplus": lambda: F.softplus(z).sqrt()}[score]()
    key = (s + bias).detach().unflatten(-1, (groups, -1))
    of_groups = key.amax(-1) if largest else key.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(of_groups, dtype=torch.bool).scatter(-1, of_groups.topk(kept_groups, -1).indices, True)
    chosen = key.masked_fill(~kept[..., None], -torch.inf).flatten(-2).topk(k, -1).indices
    w = s.gather(-1, chosen)
    return scale * (w / w.sum(-1, keepdim=True) if normalise else w)


def moe_formula(x, gate_up, down, weights, gate_up_bias, down_bias, interleaved=False, **options):
    y = torch.zeros_like(x)
    for j in range(EXPERTS.shape[1]):
        e = EXPERTS[:, j]
        both = torch.einsum("th,toh->to", x, gate_up[e]) + gate_up_bias[e]
        g, u = (both[:, ::2], both[:, 1::2]) if interleaved else both.chunk(2, -1)
        y = y + weights[:, j : j + 1] * (torch.einsum("ti,thi->th", swiglu_formula(g, u, **options), down[e]) + down_bias[e])
    return y


def mlp_formula(x, gate, up, down, act=F.silu):
    return (act(x @ gate.t()) * (x @ up.t())) @ down.t()


LAYER_CASES = {
    "swiglu_multipliers": Case(lambda g, u: ops.swiglu(g, u, 0.7, 1.3), lambda g, u: swiglu_formula(g, u, 0.7, 1.3),
                               (3, 5, 17), (3, 5, 17)),
    "swiglu_limit": Case(
        lambda g, u: ops.swiglu(g, u, limit=0.8, slope=1.702, up_offset=1.0),
        lambda g, u: swiglu_formula(g, u, limit=0.8, slope=1.702, offset=1.0), (3, 5, 17), (3, 5, 17)),
    "rope_neighbours": Case(lambda q, k: ops.rope(q, k, *tables(q), pairs="neighbours"),
                            lambda q, k: (neighbours(q, COS, SIN), neighbours(k, COS, SIN)), Q, K),
    "rope_last": Case(lambda q, k: ops.rope(q, k, *tables(q), rotary_dim=4, columns="last"),
                      lambda q, k: (last(q, COS, SIN), last(k, COS, SIN)), Q, K),
    "rope_last_neighbours": Case(
        lambda q, k: ops.rope(q, k, *(t[..., :2] for t in tables(q)), rotary_dim=4, columns="last", pairs="neighbours"),
        lambda q, k: (last(q, COS, SIN, neighbours), last(k, COS, SIN, neighbours)), Q, K),
    "qk_norm_rope": Case(lambda q, k, wq, wk: ops.qk_norm_rope(q, k, *tables(q), wq, wk),
                         lambda q, k, wq, wk: (halves(rms(q, wq), COS, SIN), halves(rms(k, wk), COS, SIN)), Q, K, (8,),
                         (8,), factor=12, gradients=24),
    "qk_norm_rope_gemma": Case(
        lambda q, k, w: ops.qk_norm_rope(q, k, *tables(q), w, offset=1.0, casting="gemma", rotary_dim=4, columns="last",
                                         pairs="neighbours"),
        lambda q, k, w: (last(rms(q, w, 1.0), COS, SIN, neighbours), last(rms(k), COS, SIN, neighbours)), Q, K, (8,),
        factor=12, gradients=24),
    "neighborhood_attention": Case(lambda *a: ops.neighborhood_attention(*a, kernel_size=3),
                                   lambda *a: neighborhood_formula(*a, 3, 1), Q, Q, Q, factor=9, gradients=17),
    "neighborhood_attention_dilated": Case(
        lambda *a: ops.neighborhood_attention(*a, kernel_size=3, dilation=2, scale=0.5),
        lambda *a: neighborhood_formula(*a, 3, 2, 0.5), Q, Q, Q, factor=9, gradients=17),
    "multi_token_attention": Case(lambda s, w, b: ops.multi_token_attention(s, w, b, padding=1), multi_token_formula,
                                  (2, 4, 6, 6), (2, 4, 3, 3), (2,), factor=16, gradients=32),
    "multi_token_attention_groups": Case(
        lambda s, w: ops.multi_token_attention(s, w, stride=2, padding=1, groups=2),
        lambda s, w: multi_token_formula(s, w, stride=2, groups=2), (2, 4, 6, 6), (4, 2, 3, 3), factor=16, gradients=32),
    "attn_res": Case(ops.attn_res, attn_res_formula, (3, 2, 5, 9), (9,), (9,), factor=16, gradients=64),
    "mhc_coeffs": Case(ops.mhc_coeffs, mhc_formula, (2, 3, 3, 4), (12, 15), (15,), (1,), (1,), (1,), factor=64,
                       gradients=256),
    "mhc_pre": Case(ops.mhc_pre, lambda x, h: (h[..., None] * x).sum(-2), (2, 3, 3, 4), (2, 3, 3), factor=6),
    "mhc_post_res": Case(ops.mhc_post_res, lambda x, f, post, res: res @ x + post[..., None] * f[..., None, :],
                         (2, 3, 3, 4), (2, 3, 4), (2, 3, 3), (2, 3, 3, 3), factor=6, gradients=12),
    "mhc_apply": Case(lambda *a: ops.mhc_apply(*a, return_x_in=True), mhc_apply_formula, (2, 3, 3, 4), (2, 3, 4),
                      (2, 3, 3), (2, 3, 3), (2, 3, 3, 3), factor=6, gradients=12),
    "mhc_forward": Case(lambda x, *a: ops.mhc_forward(x, torch.sin, *a), mhc_forward_formula, (2, 3, 3, 4), (12, 15),
                        (15,), (1,), (1,), (1,), factor=64, gradients=256),
    "moe_gpt_oss": Case(
        lambda x, g, d, w, bg, bd: ops.moe(x, g, d, EXPERTS, w, "interleaved", bg, bd, limit=0.8, slope=1.702,
                                           up_offset=1.0),
        lambda *a: moe_formula(*a, interleaved=True, limit=0.8, slope=1.702, offset=1.0), (6, 8), (4, 12, 8), (4, 8, 6),
        (6, 2), (4, 12), (4, 8), factor=16, gradients=32),
    "moe_router": Case(lambda z: ops.moe_router(z, 4)[1], lambda z: router_formula(z, "softmax", 4), (2, 5, 12)),
    "moe_router_sigmoid_groups": Case(
        lambda z: ops.moe_router(z, 5, bias_of(z), score="sigmoid", scale=2.5, groups=4, kept_groups=2)[1],
        lambda z: router_formula(z, "sigmoid", 5, BIAS, scale=2.5, groups=4, kept_groups=2), (2, 7, 12)),
    "moe_router_softmax_groups": Case(
        lambda z: ops.moe_router(z, 3, normalise=False, groups=6, kept_groups=3, group_score="largest")[1],
        lambda z: router_formula(z, "softmax", 3, normalise=False, groups=6, kept_groups=3, largest=True), (9, 12)),
    "moe_router_sqrt_softplus": Case(
        lambda z: ops.moe_router(z, 3, bias_of(z), score="sqrt_softplus", scale=1.5)[1],
        lambda z: router_formula(z, "sqrt_softplus", 3, BIAS, scale=1.5), (9, 12)),
    "expert_parallel_moe": Case(
        lambda x, g, d, w, bg, bd: ops.expert_parallel_moe(x, g, d, EXPERTS, w, None, "halves", bg, bd), moe_formula,
        (6, 8), (4, 12, 8), (4, 8, 6), (6, 2), (4, 12), (4, 8), factor=16, gradients=32),
    "tiled_mlp": Case(lambda *a: ops.tiled_mlp(*a, num_shards=3), mlp_formula, (3, 5, 8), (12, 8), (12, 8), (8, 12),
                      factor=16, gradients=32),
    "tiled_mlp_geglu": Case(
        lambda *a: ops.tiled_mlp(*a, activation="geglu"),
        lambda *a: mlp_formula(*a, act=lambda t: F.gelu(t, approximate="tanh")), (3, 5, 8), (12, 8), (12, 8), (8, 12),
        factor=16, gradients=32),
}
