"""Every operator against PyTorch's own formula in f64, its gradients by differences, strides, frozen inputs, compiled
graphs, and the sentences of errors."""
import itertools
import math
import os
import re
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import tigon_torch
from case import Case
from cases_of_layers import LAYER_CASES
from cases_of_losses import LOSS_CASES
from cases_of_rows import ROW_CASES
from tigon_torch import ops, registration
from tigon_torch.ops.common import _sums

f32, f64, bf16, f16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


def rms(x, w, eps, offset):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (offset + w)


def rotate(x, cos, sin):
    r = cos.shape[-1]
    part, rest = x[..., :r], x[..., r:]
    turned = torch.cat([-part[..., r // 2:], part[..., :r // 2]], -1)
    return torch.cat([part * cos + turned * sin, rest], -1)


def tables(batch, seq, columns, first=()):
    angle = torch.rand(*first, batch, seq, columns // 2, generator=torch.Generator().manual_seed(7), dtype=f64) * 6
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rope_formula(q, k, cos, sin):
    cos, sin = cos.to(q.dtype).unsqueeze(1), sin.to(q.dtype).unsqueeze(1)
    return rotate(q, cos, sin), rotate(k, cos, sin)


def mrope_formula(q, k, cos, sin, section):
    def choose(t):
        parts = t.to(q.dtype).split(section * 2, dim=-1)
        return torch.cat([part[i % 3] for i, part in enumerate(parts)], -1)
    return rope_formula(q, k, choose(cos), choose(sin))


def attention_formula(q, k, v, sinks=None, scale=None, causal=True, window=None, softcap=None, lengths=None,
                      begins=None, ends=None):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(2, 3) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    i = torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2] if causal else 0)
    j = torch.arange(k.shape[2])[None]
    seen = (j <= i) if causal else torch.ones_like(j <= i)
    if window:
        seen &= (i - j).abs() < window
    if lengths is not None:
        document = torch.bucketize(j, torch.tensor(lengths[1:]), right=True)
        seen &= torch.bucketize(i, torch.tensor(lengths[1:]), right=True) == document
    if begins is not None:
        b, e = (torch.tensor(x)[:, None, None, None] for x in (begins, ends))
        seen = seen & (b <= j) & (j < e)
    s = s.masked_fill(~seen, -1e30)
    if sinks is None:
        return torch.where(seen.any(-1, keepdim=True), s.softmax(-1), 0) @ v
    s = torch.cat([s, sinks.to(s.dtype)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    return s.softmax(-1)[..., :-1] @ v


def loss_formula(z, target, smoothing=0.0, z_loss=0.0, softcap=None, reduction="mean"):
    if softcap:
        z = softcap * torch.tanh(z / softcap)
    z, flat = z.flatten(0, -2), target.flatten()
    kept = flat != -100
    rows = F.cross_entropy(z, flat, label_smoothing=smoothing, reduction="none")
    rows = rows + z_loss * torch.where(kept, z.logsumexp(-1).square(), 0)
    if reduction == "none":
        return rows.view(target.shape)
    return rows.sum() / (kept.sum() if reduction == "mean" else 1)


TARGET = torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(3))
TARGET[0, 1] = TARGET[2, 4] = -100
PAIRS = torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(4))
PAIRS[1, 3:] = -100
LOGPS = -torch.rand(4, generator=torch.Generator().manual_seed(5), dtype=f64) * 9
DESIRABLE = torch.tensor([True, False, False, True])
IDS = PAIRS.clamp(min=0)
ADVANTAGES = torch.tensor([1.5, -0.5, 0.25, -1.0], dtype=f64)
OLD = -torch.rand(4, 5, generator=torch.Generator().manual_seed(6), dtype=f64) * 4
MASK = PAIRS != -100
EXPERTS = torch.tensor([[0, 2], [2, 1], [1, 0], [0, 2], [2, 0], [0, 1]])  # of four, the last one unused


def sequence_logps(x, w, target, average=False):
    logp = (x @ w.t()).log_softmax(-1).gather(-1, target.clamp(min=0)[..., None])[..., 0]
    kept = target != -100
    total = torch.where(kept, logp, 0).sum(-1)
    return total / kept.sum(-1).clamp(min=1) if average else total


def nll_of(x, w, target):
    return F.cross_entropy((x @ w.t())[:2].flatten(0, 1), target[:2].flatten())


def dpo_formula(x, w):
    c, r = (sequence_logps(x, w, PAIRS) - LOGPS.to(x.dtype)).chunk(2)
    return -F.logsigmoid(0.3 * (c - r)).mean()


def orpo_formula(x, w):
    c, r = sequence_logps(x, w, PAIRS, True).chunk(2)
    odds = c - r - (torch.log1p(-c.exp()) - torch.log1p(-r.exp()))
    return -0.2 * F.logsigmoid(odds).mean() + nll_of(x, w, PAIRS)


def simpo_formula(x, w):
    c, r = sequence_logps(x, w, PAIRS, True).chunk(2)
    return -F.logsigmoid(2 * (c - r) - 0.5).mean()


def cpo_formula(x, w):
    c, r = sequence_logps(x, w, PAIRS).chunk(2)
    return -F.logsigmoid(0.1 * (c - r)).mean() + nll_of(x, w, PAIRS)


def kto_formula(x, w):
    sign = torch.where(DESIRABLE, 1.0, -1.0).to(x.dtype)
    return torch.sigmoid(-0.1 * sign * (sequence_logps(x, w, PAIRS) - LOGPS.to(x.dtype) - 0.5)).mean()


def jsd_formula(s, t, beta):
    s, t = s.log_softmax(-1), t.log_softmax(-1)
    m = torch.log(beta * t.exp() + (1 - beta) * s.exp())
    rows = beta * (t.exp() * (t - m)).sum(-1) + (1 - beta) * (s.exp() * (s - m)).sum(-1)
    kept = TARGET != -100
    return (rows * kept).sum() / kept.sum()


def grpo_formula(z):
    logp = z[:, :-1].log_softmax(-1).gather(-1, IDS[..., None])[..., 0]
    r = logp - OLD.to(z.dtype)
    a = ADVANTAGES.to(z.dtype)[:, None]
    f = -torch.minimum(r.exp() * a, r.exp().clamp(0.8, 1.2) * a)
    d = OLD.flip(0).to(z.dtype) - logp
    return ((f + 0.04 * (d.exp() - 1 - d)) * MASK).sum() / MASK.sum()


def linear_grpo_formula(x, w, b=None, reduce=True, kind="dapo"):
    logp = F.linear(x / 4, w, b)[:, :5].div(0.8).log_softmax(-1).gather(-1, IDS[..., None])[..., 0]
    r = logp - OLD.to(x.dtype)
    a = ADVANTAGES.to(x.dtype)[:, None]
    if kind == "gspo":
        r = ((r * MASK).sum(-1, keepdim=True) / MASK.sum(-1, keepdim=True)).expand_as(r)
    f = -torch.minimum(r.exp() * a, r.exp().clamp(0.8, 1.2) * a)
    d = OLD.flip(0).to(x.dtype) - logp
    values = (f + 0.04 * (d.exp() - 1 - d)) * MASK
    return values.sum() / MASK.sum() if reduce else values


def linear_grpo(x, w, b=None, **options):
    A = _sums(x)  # a quarter of x, because log-probabilities far from the old ones have ratios beyond f16
    return ops.fused_linear_grpo(x / 4, w, IDS, ADVANTAGES.to(A), b, OLD.to(A), OLD.flip(0).to(A), MASK, beta=0.04,
                                 temperature=0.8, **options)


def moe_formula(x, gate_up, down, weights):
    y = torch.zeros_like(x)
    for j in range(EXPERTS.shape[1]):
        g, u = torch.einsum("th,toh->to", x, gate_up[EXPERTS[:, j]]).chunk(2, -1)
        y = y + weights[:, j:j + 1] * torch.einsum("ti,thi->th", F.silu(g) * u, down[EXPERTS[:, j]])
    return y


COS, SIN = tables(2, 5, 8)
COS1, SIN1 = tables(1, 5, 4)
COS3, SIN3 = tables(2, 5, 8, (3,))
Q, K = (2, 4, 5, 8), (2, 2, 5, 8)


def as_log(f):
    return lambda s, t: f(s.log_softmax(-1), t.log_softmax(-1))


CASES = {
    "rms_norm": Case(lambda x, w: ops.rms_norm(x, w, 1e-5, 0.0, "none"), lambda x, w: rms(x, w, 1e-5, 0.0),
                     (3, 5, 17), (17,)),
    "rms_norm_gemma": Case(lambda x, w: ops.rms_norm(x, w, 1e-6, 1.0, "gemma"), lambda x, w: rms(x, w, 1e-6, 1.0),
                           (3, 5, 17), (17,)),
    "rms_norm_llama": Case(lambda x, w: ops.rms_norm(x, w), lambda x, w: rms(x, w, 1e-6, 0.0), (3, 5, 17), (17,)),
    "rms_norm_bare": Case(lambda x: ops.rms_norm(x, None, 1e-5), lambda x: rms(x, 1.0, 1e-5, 0.0), (3, 5, 17)),
    "fused_add_rms_norm": Case(
        lambda x, r, w: ops.fused_add_rms_norm(x, r, w, 1e-5, 1.0, "none"),
        lambda x, r, w: (rms(x + r, w, 1e-5, 1.0), x + r), (3, 5, 17), (3, 5, 17), (17,)),
    "layer_norm": Case(lambda x, w, b: ops.layer_norm(x, w, b, 1e-5),
                       lambda x, w, b: F.layer_norm(x, (17,), w, b, 1e-5), (3, 5, 17), (17,), (17,)),
    "layer_norm_bare": Case(lambda x: ops.layer_norm(x), lambda x: F.layer_norm(x, (17,)), (3, 5, 17)),
    "swiglu": Case(ops.swiglu, lambda g, u: F.silu(g) * u, (3, 5, 17), (3, 5, 17)),
    "geglu_tanh": Case(ops.geglu, lambda g, u: F.gelu(g, approximate="tanh") * u, (3, 5, 17), (3, 5, 17)),
    "geglu_erf": Case(lambda g, u: ops.geglu(g, u, "none"), lambda g, u: F.gelu(g) * u, (3, 5, 17), (3, 5, 17)),
    "rope": Case(lambda q, k: ops.rope(q, k, COS, SIN) if q.dtype == f64 else ops.rope(q, k, COS.float(), SIN.float()),
                 lambda q, k: rope_formula(q, k, COS, SIN), Q, K),
    "rope_partial": Case(
        lambda q, k: ops.rope(q, k, COS1, SIN1) if q.dtype == f64 else ops.rope(q, k, COS1.float(), SIN1.float()),
        lambda q, k: rope_formula(q, k, COS1, SIN1), Q, K),
    "mrope": Case(
        lambda q, k: ops.mrope(q, k, *((COS3, SIN3) if q.dtype == f64 else (COS3.float(), SIN3.float())), [1, 2, 1]),
        lambda q, k: mrope_formula(q, k, COS3, SIN3, [1, 2, 1]), Q, K),
    "attention": Case(ops.attention, attention_formula, Q, (2, 2, 7, 8), (2, 2, 7, 8), factor=9, gradients=17),
    "attention_window": Case(lambda *a: ops.attention(*a, scale=0.5, window=3, softcap=2.0),
                             lambda *a: attention_formula(*a, scale=0.5, window=3, softcap=2.0), Q, K, K, factor=9,
                             gradients=17),
    "attention_all": Case(lambda *a: ops.attention(*a, causal=False), lambda *a: attention_formula(*a, causal=False),
                          Q, (2, 2, 7, 8), (2, 2, 7, 8), factor=9, gradients=17),
    "attention_documents": Case(lambda *a: ops.attention(*a, cu_seqlens=torch.tensor([0, 2, 5], dtype=torch.int32)),
                                lambda *a: attention_formula(*a, lengths=[0, 2, 5]), Q, K, K, factor=9, gradients=17),
    "attention_padded": Case(lambda *a: ops.attention(*a, key_begins=torch.tensor([0, 2]),
                                                      key_ends=torch.tensor([3, 5], dtype=torch.int32)),
                             lambda *a: attention_formula(*a, begins=[0, 2], ends=[3, 5]), Q, K, K, factor=9,
                             gradients=17),
    "attention_narrow_values": Case(ops.attention, attention_formula, Q, (2, 2, 7, 8), (2, 2, 7, 5), factor=9,
                                    gradients=17),
    "attention_wide_values": Case(
        lambda *a: ops.attention(*a, window=3, softcap=2.0, cu_seqlens=torch.tensor([0, 2, 5], dtype=torch.int32)),
        lambda *a: attention_formula(*a, window=3, softcap=2.0, lengths=[0, 2, 5]), Q, K, (2, 2, 5, 19), factor=9,
        gradients=17),
    "linear": Case(ops.linear, F.linear, (3, 5, 9), (7, 9), (7,), factor=6),
    "linear_bare": Case(ops.linear, F.linear, (3, 5, 9), (7, 9), factor=6),
    "cross_entropy": Case(lambda z: ops.cross_entropy(z, TARGET), lambda z: loss_formula(z, TARGET), (3, 5, 11)),
    "cross_entropy_all": Case(
        lambda z: ops.cross_entropy(z, TARGET, label_smoothing=0.1, z_loss=0.01, softcap=3.0, reduction="none"),
        lambda z: loss_formula(z, TARGET, 0.1, 0.01, 3.0, "none"), (3, 5, 11), gradients=12),
    "fused_linear_cross_entropy": Case(
        lambda x, w: ops.fused_linear_cross_entropy(x, w, TARGET),
        lambda x, w: loss_formula(x @ w.t(), TARGET), (3, 5, 9), (11, 9), factor=8, gradients=12),
    "fused_linear_cross_entropy_all": Case(
        lambda x, w, b: 3 * ops.fused_linear_cross_entropy(x, w, TARGET, b, label_smoothing=0.1, z_loss=0.01,
                                                           softcap=3.0, reduction="sum"),
        lambda x, w, b: 3 * loss_formula(x @ w.t() + b, TARGET, 0.1, 0.01, 3.0, "sum"), (3, 5, 9), (11, 9), (11,),
        factor=8, gradients=16),
    "fused_linear_cross_entropy_rows": Case(
        lambda x, w: ops.fused_linear_cross_entropy(x, w, TARGET, reduction="none"),
        lambda x, w: loss_formula(x @ w.t(), TARGET, reduction="none"), (3, 5, 9), (11, 9), factor=8, gradients=12),
    "jsd": Case(as_log(lambda s, t: ops.jsd(s, t, 0.3, TARGET)), lambda s, t: jsd_formula(s, t, 0.3), (3, 5, 11),
                (3, 5, 11), factor=16, gradients=64),
    "kl_div": Case(as_log(lambda s, t: ops.kl_div(s, t, log_target=True)),
                   as_log(lambda s, t: F.kl_div(s.flatten(0, 1), t.flatten(0, 1), log_target=True,
                                                reduction="batchmean")), (3, 5, 11), (3, 5, 11), factor=16,
                   gradients=64),
    "kl_div_elements": Case(as_log(lambda s, t: ops.kl_div(s, t.exp(), reduction="none")),
                            as_log(lambda s, t: F.kl_div(s, t.exp(), reduction="none")), (3, 5, 11), (3, 5, 11),
                            factor=16, gradients=64),
    "grpo_loss": Case(
        lambda z: ops.grpo_loss(z, IDS, ADVANTAGES.to(_sums(z)), OLD.to(_sums(z)), OLD.flip(0).to(_sums(z)),
                                MASK, beta=0.04), grpo_formula, (4, 6, 11), factor=64, gradients=64),
    "fused_linear_grpo": Case(lambda x, w: 3 * linear_grpo(x, w), lambda x, w: 3 * linear_grpo_formula(x, w),
                              (4, 6, 9), (11, 9), factor=64, gradients=64),
    "fused_linear_grpo_tokens": Case(lambda x, w, b: linear_grpo(x, w, b, reduce=False),
                                     lambda x, w, b: linear_grpo_formula(x, w, b, reduce=False), (4, 5, 9), (11, 9),
                                     (11,), factor=64, gradients=64),
    "fused_linear_grpo_sequences": Case(lambda x, w: linear_grpo(x, w, level="sequence"),
                                        lambda x, w: linear_grpo_formula(x, w, kind="gspo"), (4, 6, 9), (11, 9),
                                        factor=64, gradients=64),
    "fused_linear_dpo": Case(
        lambda x, w: ops.fused_linear_dpo(x, w, PAIRS, ref_logps=LOGPS.to(_sums(x)), beta=0.3), dpo_formula,
        (4, 5, 9), (11, 9), factor=8, gradients=16),
    "fused_linear_orpo": Case(lambda x, w: ops.fused_linear_orpo(x, w, PAIRS, beta=0.2), orpo_formula, (4, 5, 9),
                              (11, 9), factor=8, gradients=16),
    "fused_linear_simpo": Case(lambda x, w: ops.fused_linear_simpo(x, w, PAIRS, beta=2.0), simpo_formula, (4, 5, 9),
                               (11, 9), factor=8, gradients=16),
    "fused_linear_cpo": Case(lambda x, w: ops.fused_linear_cpo(x, w, PAIRS), cpo_formula, (4, 5, 9), (11, 9), factor=8,
                             gradients=16),
    "fused_linear_kto": Case(
        lambda x, w: ops.fused_linear_kto(x, w, PAIRS, DESIRABLE, kl=torch.full((), 0.5, device=x.device),
                                          ref_logps=LOGPS.to(_sums(x))),
        kto_formula, (4, 5, 9), (11, 9), factor=8, gradients=16),
    "moe": Case(lambda x, g, d, w: ops.moe(x, g, d, EXPERTS, w), moe_formula, (6, 8), (4, 12, 8), (4, 8, 6), (6, 2),
                factor=16, gradients=32),
}
CASES |= ROW_CASES | LAYER_CASES | LOSS_CASES
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
# Log-probabilities that were rounded to 16 bits are other ones: these are compared in f32 alone.
ROUNDED_BETWEEN = {"jsd", "kl_div", "kl_div_elements", "tvd", "tvd_elements"}


def as_tuple(y):
    return y if isinstance(y, tuple) else (y,)


def run(f, inputs, upstream=None):
    """Results, and gradients for upstream gradients that are the same for all who ask."""
    results = as_tuple(f(*inputs))
    if upstream is None:
        generator = torch.Generator().manual_seed(99)
        upstream = [torch.randn(y.shape, generator=generator, dtype=f64) for y in results]
    inputs = [t for t in inputs if t.requires_grad]
    trained = [(y, g.to(y.dtype)) for g, y in zip(upstream, results) if y.requires_grad]
    gradients = torch.autograd.grad([y for y, _ in trained], inputs, [g for _, g in trained])
    return [y.detach() for y in results], list(gradients)


def error(actual, reference):
    """The largest, of |reference| + its root mean square."""
    reference = reference.detach()
    scale = reference.abs() + reference.square().mean().sqrt() + 1e-30
    return ((actual.detach().to(f64) - reference).abs() / scale).max().item()


def roundoff(dtype):
    return torch.finfo(dtype).eps / 2


def upstream_of(dtype, results):
    """Upstream gradients that f64 and dtype both hold."""
    generator = torch.Generator().manual_seed(99)
    return [torch.randn(y.shape, generator=generator, dtype=f64).to(dtype).to(f64) for y in results]


# Losses of which something is taken for a constant.
PARTLY_CONSTANT = {"fused_linear_cross_entropy_token_scaling", "embedding_padding"}


@every_case
def test_gradients_by_differences(case, request):
    if request.node.callspec.id in PARTLY_CONSTANT:
        pytest.skip("a part of the loss is a constant, as test_formula has it")
    inputs = case.inputs(f64)
    # A second backward of a fused loss makes its gradients again, times the upstream gradient before the products.
    assert torch.autograd.gradcheck(case.ours, inputs, nondet_tol=1e-13)


# Operators whose gradients are made of operators that have gradients.
DIFFERENTIABLE_TWICE = {"rope", "rope_partial", "rope_neighbours", "rope_last", "rope_last_neighbours", "mrope", "linear",
                        "linear_bare"}


# Of operators beside one another: a gradient of one has nothing to do with the other's inputs.
BESIDE = {"mhc_apply"}


@every_case
def test_gradients_of_gradients_are_right_or_refused(case, request):
    name = request.node.callspec.id
    if name in BESIDE:
        pytest.skip("its parts are cases of their own")
    _, wanted = run(case.ours, case.inputs(f64))
    inputs = case.inputs(f64)
    results = as_tuple(case.ours(*inputs))
    generator = torch.Generator().manual_seed(99)
    upstream = [torch.randn(y.shape, generator=generator, dtype=f64, requires_grad=True) for y in results]
    gradients = torch.autograd.grad(results, inputs, upstream, create_graph=True)
    assert all(map(torch.equal, gradients, wanted))  # which asks for no second derivative
    if name in DIFFERENTIABLE_TWICE:
        assert torch.autograd.gradgradcheck(case.ours, case.inputs(f64))
        return
    for g, t in itertools.product(gradients, [*inputs, *upstream]):
        with pytest.raises(RuntimeError, match="tigon: .*a gradient of its gradient is wanted; expected first"):
            torch.autograd.grad(g.square().sum() + t.sum(), t, retain_graph=True)


def test_gradients_of_gradients_with_frozen_inputs_and_in_one_direction():
    case = CASES["linear"]
    for chosen in itertools.product((False, True), repeat=3):
        inputs = [t.requires_grad_(wanted) for t, wanted in zip(case.inputs(f64), chosen)]
        if any(chosen):
            assert torch.autograd.gradgradcheck(case.ours, inputs)
    rope = CASES["rope"]
    for frozen in (0, 1):
        inputs = rope.inputs(f64)
        inputs[frozen].requires_grad_(False)
        assert torch.autograd.gradgradcheck(rope.ours, inputs)
    with pytest.raises(RuntimeError, match="tigon: swiglu: a gradient of its gradient is wanted"):
        up = torch.ones(3, requires_grad=True)
        gradient, = torch.autograd.grad(ops.swiglu(torch.ones(3), up).sum(), up, create_graph=True)
        gradient.sum().backward()


@pytest.mark.parametrize("through", ["checkpoint", "jacobian"])
def test_create_graph_through_checkpoints_and_vectorized_jacobians(through):
    from torch.utils.checkpoint import checkpoint
    x, w = torch.randn(3, 17, dtype=f64, requires_grad=True), torch.rand(17, dtype=f64)
    if through == "checkpoint":
        y = checkpoint(lambda x: ops.rms_norm(x, w), x, use_reentrant=False)
        gradient, = torch.autograd.grad(y.sum(), x, create_graph=True)
        plain, = torch.autograd.grad(ops.rms_norm(x, w).sum(), x)
        assert torch.equal(gradient, plain)
    else:
        gradient = torch.autograd.functional.jacobian(lambda x: ops.rms_norm(x, w), x, create_graph=True,
                                                      vectorize=True)
        formula = torch.autograd.functional.jacobian(lambda x: rms(x, w, 1e-6, 0.0), x)
        torch.testing.assert_close(gradient, formula)
    with pytest.raises(RuntimeError, match="tigon: rms_norm: a gradient of its gradient is wanted"):
        (gradient.sum() + x.sum()).backward()


@every_case
def test_forward_mode_is_refused(case):
    inputs = [t.detach() for t in case.inputs(f64)]
    for i, t in enumerate(inputs):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(t, torch.ones_like(t))
            with pytest.raises(RuntimeError, match="tigon: .*an input has a forward-mode tangent; expected"):
                case.ours(*inputs[:i], dual, *inputs[i + 1:])
    x = torch.randn(3, 5, requires_grad=True)
    y = ops.rms_norm(x)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="tigon: rms_norm: an input has a forward-mode"):
        torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones(3, 5), torch.ones(3, 5)))


@every_case
@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=["f32", "bf16", "f16"])
def test_formula(case, dtype, request):
    name = request.node.callspec.id.split("-")[-1]
    if dtype != f32 and name in ROUNDED_BETWEEN:
        pytest.skip("its inputs are rounded log-probabilities")
    inputs = case.inputs(dtype)
    exact = [t.detach().to(f64).requires_grad_() for t in inputs]
    upstream = upstream_of(dtype, as_tuple(case.formula(*exact)))
    wanted, wanted_gradients = run(case.formula, exact, upstream)
    results, gradients = run(case.ours, inputs, upstream)
    for y, reference in zip(results, wanted):
        assert y.shape == reference.shape
        # Products and sums in f32 beside the one rounding of a result in 16 bits.
        assert error(y, reference) <= case.factor * max(roundoff(y.dtype), 4 * roundoff(f32))
    for t, g, reference in zip(inputs, gradients, wanted_gradients):
        assert g.dtype == t.dtype and g.shape == t.shape
        assert error(g, reference) <= case.gradients * max(roundoff(g.dtype), 4 * roundoff(f32))


def apart(t):
    """The same values in rows of a wider buffer."""
    wide = torch.full((*t.shape[:-1], t.shape[-1] + 3), math.nan, dtype=t.dtype)
    wide[..., :t.shape[-1]] = t.detach()
    return wide[..., :t.shape[-1]]


def spaced(t):
    """The same values in every other column."""
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1]), math.nan, dtype=t.dtype)
    wide[..., ::2] = t.detach()
    return wide[..., ::2]


@every_case
@pytest.mark.parametrize("dtype", [f32, bf16], ids=["f32", "bf16"])
def test_strides_change_no_bit(case, dtype):
    inputs = case.inputs(dtype)
    results, gradients = run(case.ours, inputs)
    for layout in (apart, spaced, lambda t: t.detach().transpose(0, -1).contiguous().transpose(0, -1)):
        strided = [layout(t).requires_grad_() for t in inputs]
        again, gradients_again = run(case.ours, strided)
        for a, b in zip(results + gradients, again + gradients_again):
            assert torch.equal(a, b)


@every_case
def test_inputs_whose_elements_share_memory(case):
    for layout in (lambda t: t.detach()[:1].expand(t.shape), lambda t: t.detach()[..., :1].expand(t.shape)):
        shared = [layout(t).requires_grad_() for t in case.inputs(f32)]
        apart_ones = [t.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for t in shared]
        results, gradients = run(case.ours, shared)
        again, gradients_again = run(case.ours, apart_ones)
        for a, b in zip(results + gradients, again + gradients_again):
            assert torch.equal(a, b)


class Calls(TorchDispatchMode):
    """The calls of tigon's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "tigon":
            self.calls.append((func, args, result))
        return result


class Converted(TorchDispatchMode):
    """Whether a tensor of more than one dimension went from f16 to f32."""

    large = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten._to_copy and args[0].dim() > 1 and args[0].dtype == f16:
            self.large |= result.dtype == f32
        return result


@pytest.mark.parametrize("name", ["grad", "vjp", "jacrev", "jacfwd", "hessian", "grad of vmap", "vmap of grad"])
def test_transforms_of_torch_func_are_refused(name):
    def f(x):
        return ops.rms_norm(x).sum()

    func = torch.func
    transform = {"vjp": lambda f: lambda x: func.vjp(f, x), "vmap of grad": lambda f: func.vmap(func.grad(f)),
                 "grad of vmap": lambda f: func.grad(lambda x: func.vmap(f)(x).sum())}.get(name, getattr(func, name, None))
    with pytest.raises(RuntimeError, match="tigon: rms_norm: .*expected derivatives by backward alone"):
        transform(f)(torch.ones(3, 8))
    x = torch.ones(8)
    assert torch.equal(func.grad(lambda y: (y * ops.rms_norm(x)).sum())(x), ops.rms_norm(x))  # a constant there


@every_case
def test_frozen_inputs(case):
    inputs = case.inputs(f32)
    _, wanted = run(case.ours, inputs)
    for i in range(len(inputs)) if len(inputs) > 1 else []:
        partly = case.inputs(f32)
        partly[i].requires_grad_(False)
        results = as_tuple(case.ours(*partly))
        generator = torch.Generator().manual_seed(99)
        torch.autograd.backward(results, [torch.randn(y.shape, generator=generator, dtype=f64).to(y.dtype)
                                          for y in results])
        for k, t in enumerate(partly):
            if k == i:
                assert t.grad is None
            else:
                torch.testing.assert_close(t.grad, wanted[k], rtol=1e-6, atol=1e-7)


def elements(calls):
    """Numbers that the operators made."""
    return sum(t.numel() for _, _, result in calls for t in as_tuple(result))


# Inputs whose gradient tigon can leave out; dx of norms comes from one loop.
FROZEN = [*((name, i) for name in ("swiglu", "geglu_tanh", "geglu_erf", "rope", "rope_partial", "mrope") for i in (0, 1)),
          *((name, i) for name in ("attention", "attention_window", "attention_documents", "attention_narrow_values",
                                   "attention_wide_values") for i in (0, 1, 2)),
          ("fused_linear_grpo", 0), ("fused_linear_grpo", 1), ("fused_linear_grpo_tokens", 0),
          ("rms_norm", 1), ("fused_add_rms_norm", 2), ("layer_norm", 1), ("layer_norm", 2), ("linear", 0), ("linear", 1),
          ("fused_linear_cross_entropy", 0), ("fused_linear_cross_entropy", 1), ("fused_linear_cross_entropy_all", 2),
          ("fused_linear_cross_entropy_rows", 0), ("fused_linear_cross_entropy_rows", 1), ("fused_linear_dpo", 0),
          ("fused_linear_dpo", 1), ("fused_linear_kto", 1), ("moe", 0), ("moe", 1), ("moe", 2), ("moe", 3), ("jsd", 0),
          ("kl_div", 1),
          *((name, i) for name in ("fused_linear_kl_div_elements", "fused_linear_jsd_logits", "fused_linear_scaled_cross_entropy",
                                   "vocab_parallel_fused_linear_cross_entropy") for i in (0, 1, 2)),
          *(("qk_norm_rope", i) for i in range(4)), *(("tiled_mlp", i) for i in range(4)),
          *(("moe_gpt_oss", i) for i in range(6)), *(("mhc_post_res", i) for i in range(4)),
          ("group_norm", 1), ("group_norm", 2), ("poly_norm", 1), ("poly_norm", 2), ("modulated_rms_norm", 1),
          ("modulated_rms_norm", 3), ("dyt", 1), ("dyt", 2), ("dyt", 3), ("multi_token_attention", 1),
          ("multi_token_attention", 2), ("attn_res", 1), ("attn_res", 2), ("mhc_coeffs", 0), ("mhc_coeffs", 1),
          ("mhc_coeffs", 2)]


@pytest.mark.parametrize("name, i", FROZEN, ids=[f"{name}-{i}" for name, i in FROZEN])
def test_frozen_gradients_are_not_computed(name, i):
    case = CASES[name]
    counts = []
    for frozen in (False, True):
        inputs = case.inputs(f32)
        inputs[i].requires_grad_(not frozen)
        with Calls() as calls:
            run(case.ours, inputs)
        counts.append(elements(calls.calls))
    assert counts[0] - counts[1] == inputs[i].numel()


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", ["swiglu", "geglu_tanh", "geglu_erf", "rope", "mrope", "attention", "attention_window",
                                  "attention_narrow_values", "attention_wide_values"])
def test_the_wanted_gradients_are_the_same(name, dtype):
    """Every choice of inputs that are trained: the gradients that are made are those of all."""
    case = CASES[name]
    _, everything = run(case.ours, case.inputs(dtype))
    for chosen in itertools.product((False, True), repeat=len(case.shapes)):
        if any(chosen):
            inputs = [t.requires_grad_(wanted) for t, wanted in zip(case.inputs(dtype), chosen)]
            _, gradients = run(case.ours, inputs)
            for g, wanted in zip(gradients, itertools.compress(everything, chosen)):
                assert error(g, wanted.to(f64)) <= 64 * roundoff(f32) + 2 * roundoff(dtype) * (dtype != f32)


@pytest.mark.parametrize("name", ["swiglu", "geglu_erf"])
def test_gates_of_many_rows_with_a_frozen_input(name):
    """More rows than the few that the other gradient goes to."""
    for i in (0, 1):
        inputs = [torch.randn(40, 9000, generator=torch.Generator().manual_seed(i)) for _ in range(2)]
        _, everything = run(CASES[name].ours, [t.clone().requires_grad_() for t in inputs])
        inputs[i].requires_grad_()
        _, (gradient,) = run(CASES[name].ours, inputs)
        assert torch.equal(gradient, everything[i])


@every_case
def test_no_gradients_without_grad_mode(case):
    with torch.no_grad(), Calls() as calls:
        results = as_tuple(case.ours(*case.inputs(f32)))
    assert not any(y.requires_grad for y in results)
    assert all("backward" not in func.name() for func, _, _ in calls.calls)


@every_case
def test_opcheck(case):
    with Calls() as calls:
        run(case.ours, case.inputs(f32))
    assert calls.calls
    for func, args, _ in calls.calls:
        args = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
        torch.library.opcheck(func, tuple(args), test_utils=("test_schema", "test_faketensor"))


def test_strides_of_heads_are_known_beforehand():
    q, k = (torch.randn(2, 5, h, 8).transpose(1, 2) for h in (4, 2))
    of_token = torch.randn(2, 5, 3, 4, 8)[:, :, 1].transpose(1, 2)  # heads with other tensors between
    for heads in (q, of_token):
        for op, args in ((torch.ops.tigon.rope.default, (heads, k, COS.float(), SIN.float(), -1, False, False, False)),
                         (torch.ops.tigon.attention.default, (heads, k, k, *[None] * 4, 0.0, True, -1, -1, 0.0, 0)),
                         (torch.ops.tigon.attention.default, (heads, k, k[..., :5], *[None] * 4, 0.0, True, -1, -1, 0.0,
                                                              0))):
            torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_layer_and_its_loss(reentrant):
    """Most operators in one graph against PyTorch's formulas in f64; checkpointed it gives the same bits."""
    from torch.utils.checkpoint import checkpoint
    upstream = torch.randn((), generator=torch.Generator().manual_seed(99), dtype=f64).to(f32)
    exact = [t.detach().to(f64).requires_grad_() for t in block_inputs()[:-1]] + block_inputs()[-1:]
    wanted, wanted_gradients = run(block_formula, exact, [upstream])
    results, gradients = run(block, block_inputs(), [upstream])
    inputs = block_inputs()
    loss = block(*inputs) if reentrant is None else checkpoint(block, *inputs, use_reentrant=reentrant)
    loss.backward(upstream)
    assert torch.equal(loss, results[0])
    assert error(loss, wanted[0]) <= 8 * roundoff(f32)
    for t, g, reference in zip(inputs, gradients, wanted_gradients):
        assert torch.equal(t.grad, g)
        assert error(t.grad, reference) <= 64 * roundoff(f32)


@every_case
def test_compiled_as_one_graph(case):
    torch._dynamo.reset()
    inputs = case.inputs(f32)
    results, gradients = run(case.ours, inputs)
    compiled = torch.compile(case.ours, fullgraph=True, backend="aot_eager")
    again, gradients_again = run(compiled, case.inputs(f32))
    for a, b in zip(results + gradients, again + gradients_again):
        torch.testing.assert_close(a, b, rtol=4e-7, atol=1e-7)


BLOCK_COS, BLOCK_SIN = (t.float() for t in tables(1, 200, 8))


def block(x, r, w, wq, wo, head, target):
    """A layer with attention, and its loss: most operators in one graph."""
    seq = x.shape[1]
    y, r = ops.fused_add_rms_norm(x, r, w)
    q = ops.linear(y, wq).view(2, seq, 4, 8).transpose(1, 2)
    q, k = ops.rope(q, q, BLOCK_COS[:, :seq], BLOCK_SIN[:, :seq])
    o = ops.attention(q, k, k, window=4).transpose(1, 2).reshape(2, seq, 32)
    o = ops.swiglu(*ops.linear(o, wo).chunk(2, -1))
    return ops.fused_linear_cross_entropy(ops.rms_norm(o + r, w), head, target)


def block_formula(x, r, w, wq, wo, head, target):
    r = x + r
    q = (rms(r, w, 1e-6, 0.0) @ wq.t()).view(2, 6, 4, 8).transpose(1, 2)
    q, k = rope_formula(q, q, BLOCK_COS[:, :6], BLOCK_SIN[:, :6])
    o = attention_formula(q, k, k, window=4).transpose(1, 2).reshape(2, 6, 32)
    gate, up = (o @ wo.t()).chunk(2, -1)
    return loss_formula(rms(F.silu(gate) * up + r, w, 1e-6, 0.0) @ head.t(), target)


def block_inputs(seq=6, vocab=50):
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, seq, 32), (2, seq, 32), (32,), (32, 32), (64, 32), (vocab, 32)]
    made = [(torch.randn(*s, generator=generator) / 4).requires_grad_() for s in shapes]
    return made + [torch.randint(0, vocab, (2, seq), generator=generator)]


def test_compiled_by_inductor():
    torch._dynamo.reset()
    results, gradients = run(block, block_inputs())
    again, gradients_again = run(torch.compile(block, fullgraph=True), block_inputs())
    for a, b in zip(results + gradients, again + gradients_again):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_compiled_code_of_another_release_is_not_found():
    schemas = registration._schemas
    assert registration.digest(schemas) in torch.compiler.config.cache_key_tag
    assert any(schema.startswith("tigon::rms_norm_backward(") for schema in schemas)
    assert registration.digest([schemas[0].replace("(", "(Tensor more, "), *schemas[1:]]) != registration.digest(schemas)


def test_sequences_of_other_lengths_reuse_the_graph():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x, w: ops.swiglu(ops.rms_norm(x, w), x), fullgraph=True, dynamic=True,
                             backend=backend)
    w = torch.ones(8)
    for n in (3, 5, 9):
        x = torch.randn(2, n, 8)
        assert torch.equal(compiled(x, w), ops.swiglu(ops.rms_norm(x, w), x))
    assert len(graphs) == 1


# ---- f16

NATIVE = ["rms_norm", "rms_norm_gemma", "fused_add_rms_norm", "layer_norm", "swiglu", "geglu_tanh", "geglu_erf", "rope",
          "mrope", "attention", "attention_window", "attention_narrow_values", "linear", "cross_entropy",
          "fused_linear_cross_entropy"]
has_f16 = pytest.mark.skipif(not torch.ops.tigon.has_f16(), reason="this CPU has no f16")


@has_f16
@pytest.mark.parametrize("name", NATIVE)
def test_f16_reaches_the_operators(name):
    with Calls() as calls, Converted() as converted:
        run(CASES[name].ours, CASES[name].inputs(f16))
    assert calls.calls and not converted.large
    for _, args, _ in calls.calls:
        assert args[0].dtype in (f16, f32) and any(t.dtype == f16 for t in args if isinstance(t, torch.Tensor))


@has_f16
def test_f16_where_f16_has_no_middle():
    """Sums and squares that f16 does not hold, of results that it does."""
    x = torch.full((3, 64), 3e4, dtype=f16)
    torch.testing.assert_close(ops.rms_norm(x), torch.ones(3, 64, dtype=f16), rtol=1e-3, atol=0)
    q = torch.full((1, 1, 4, 64), 40.0, dtype=f16)
    assert torch.equal(ops.attention(q, q, q), q)
    w = torch.full((8, 64), 300.0, dtype=f16)
    w[:, 32:] = -w[:, 32:]
    assert torch.equal(ops.linear(torch.full((2, 64), 200.0, dtype=f16), w), torch.zeros(2, 8, dtype=f16))


def test_operators_without_f16_say_so():
    z = torch.zeros(4, 6, 11, dtype=f16)
    with pytest.raises((ValueError, RuntimeError), match="tigon: jsd: the first tensor is of f16; expected f32, bf16"):
        torch.ops.tigon.jsd(z, z, None, 0.5, -100, False)


# ---- exactness beside eager

NARROW = {"rms_norm": lambda x, w, eps, offset: ops.rms_norm(x, w, eps, offset, "none"),
          "fused_add_rms_norm": lambda x, w, eps, offset: ops.fused_add_rms_norm(
              x, torch.zeros_like(x), w, eps, offset, "none")[0]}


@pytest.mark.parametrize("cols", range(1, 9))
@pytest.mark.parametrize("dtype", [f32, bf16, f64], ids=["f32", "bf16", "f64"])
@pytest.mark.parametrize("name", NARROW)
def test_rms_norms_of_narrow_rows(name, dtype, cols):
    """With an eps that is nothing beside the squares and one that is nearly all, against the formula in f64."""
    for eps, offset in itertools.product((1e-12, 1e-6, 0.01, 1.0, 1e3), (0.0, 1.0)):
        x, w = Case(None, None, (17, cols), (cols,)).inputs(dtype)
        exact = [t.detach().to(f64).requires_grad_() for t in (x, w)]
        y, wanted = NARROW[name](x, w, eps, offset), rms(*exact, eps, offset)
        dy, = upstream_of(dtype, [wanted])
        (dx, dw), (dx_of, dw_of) = (torch.autograd.grad(y, (x, w), dy.to(dtype)), torch.autograd.grad(wanted, exact, dy))
        rstd = torch.rsqrt(exact[0].detach().square().mean(-1, keepdim=True) + eps)
        assert (y.detach().to(f64) - wanted).abs().le(16 * roundoff(dtype) * wanted.abs()).all()
        assert error(dw, dw_of) <= 32 * roundoff(dtype)
        # dx is a difference of terms of this size.
        terms = (rstd * dy * (offset + exact[1].detach())).abs().amax(-1, keepdim=True)
        off = (dx.to(f64) - dx_of).abs()
        assert (off <= 16 * roundoff(dtype) * terms).all(), eps
        if name == "rms_norm" and dtype == f32 and cols == 1 and eps >= 1e-6:  # what is left of them is exact, too
            assert (off <= 64 * roundoff(f32) * dx_of.abs()).all(), eps


def test_rms_norm_in_16_bits_is_not_less_exact_than_eager():
    generator = torch.Generator().manual_seed(9)
    x, w = (torch.randn(*s, generator=generator, dtype=f64).to(bf16) for s in ((64, 512), (512,)))
    reference = rms(x.to(f64), w.to(f64), 1e-6, 0.0)
    h = x.float()
    eager = w * (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(bf16)
    assert error(ops.rms_norm(x, w), reference) <= 1.01 * error(eager, reference)
    assert error(ops.rms_norm(x, w, casting="none"), reference) <= 0.9 * error(eager, reference)


@pytest.mark.parametrize("dtype", [f32, bf16], ids=["f32", "bf16"])
def test_fused_linear_cross_entropy_is_not_less_exact_than_eager(dtype):
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(96, 64, generator=generator).to(dtype)
    w = (torch.randn(700, 64, generator=generator) / 8).to(dtype)
    target = torch.randint(0, 700, (96,), generator=generator)

    def errors(f):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        loss = f(a, b)
        loss.backward()
        return error(loss, exact[0]), error(a.grad, exact[1]), error(b.grad, exact[2])

    a, b = x.to(f64).requires_grad_(), w.to(f64).requires_grad_()
    loss = F.cross_entropy(a @ b.t(), target)
    loss.backward()
    exact = loss, a.grad, b.grad
    ours = errors(lambda a, b: ops.fused_linear_cross_entropy(a, b, target))
    eager = errors(lambda a, b: F.cross_entropy((a @ b.t()).float(), target))
    for mine, other in zip(ours, eager):
        assert mine <= max(other, 4 * roundoff(f32))


# ---- details

def test_sinks():
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(*s, generator=generator, dtype=f64).requires_grad_() for s in (Q, K, K))
    sinks = torch.randn(4, generator=generator).requires_grad_()
    results, gradients = run(lambda *a: ops.attention(*a[:3], sinks=a[3]), [q, k, v, sinks])
    wanted, wanted_gradients = run(attention_formula, [q, k, v, sinks])
    for a, b in zip(results + gradients, wanted + wanted_gradients):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_scale_of_zero_is_no_scale_of_its_own():
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(*s, generator=generator, dtype=f64).requires_grad_() for s in (Q, K, K)]
    uniform = [t.detach().requires_grad_() for t in inputs]
    ours, gradients = run(lambda *a: ops.attention(*a, scale=0.0, causal=False), inputs)
    wanted, formula = run(lambda q, k, v: F.scaled_dot_product_attention(
        q, *(t.repeat_interleave(2, 1) for t in (k, v)), scale=0.0), uniform)
    for a, b in zip(ours + gradients, wanted + formula):
        torch.testing.assert_close(a, b)
    assert not torch.allclose(ours[0], ops.attention(*inputs, causal=False))


def test_desirable_is_what_is_not_zero():
    x, w = CASES["fused_linear_kto"].inputs(f32)
    losses = [ops.fused_linear_kto(x, w, PAIRS, DESIRABLE.to(dtype) * factor) for dtype, factor in
              ((torch.uint8, 1), (f32, 0.5), (torch.int64, 256), (torch.int64, -1), (torch.bool, True))]
    assert all(torch.equal(loss, losses[0]) for loss in losses)


def test_a_cache_before_the_queries():
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    whole = ops.attention(q, k, v)
    assert torch.allclose(ops.attention(q[:, :, 4:], k, v), whole[:, :, 4:], rtol=1e-6, atol=1e-7)


def test_a_second_backward_through_a_retained_graph():
    for name in ("fused_linear_cross_entropy", "fused_linear_dpo", "fused_linear_grpo", "jsd", "moe"):
        case = CASES[name]
        inputs = case.inputs(f32)
        loss = as_tuple(case.ours(*inputs))[0].sum()
        gradients = []
        for last in (False, False, True):
            for t in inputs:
                t.grad = None
            loss.backward(retain_graph=not last)
            gradients.append([t.grad for t in inputs])
        for first, second, third in zip(*gradients):
            torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)
            assert torch.equal(second, third)


def test_gradients_accumulate():
    case = CASES["fused_linear_cross_entropy"]
    inputs = case.inputs(f32)
    case.ours(*inputs).backward()
    once = [t.grad.clone() for t in inputs]
    case.ours(*inputs).backward()
    for t, g in zip(inputs, once):
        assert torch.equal(t.grad, 2 * g)


def test_gradients_accumulate_through_a_retained_graph():
    for name in ("fused_linear_cross_entropy", "fused_linear_dpo", "fused_linear_grpo"):
        inputs = CASES[name].inputs(f32)
        loss = CASES[name].ours(*inputs)
        loss.backward(retain_graph=True)
        once = [t.grad.clone() for t in inputs]
        for _ in range(2):
            loss.backward(retain_graph=True)
        for t, g in zip(inputs, once):
            torch.testing.assert_close(t.grad, 3 * g, rtol=1e-6, atol=1e-6)


def test_the_gradient_of_the_weight_is_not_copied():
    x, w = torch.randn(5, 9), torch.randn(11, 9, requires_grad=True)
    with Calls() as calls:
        loss = ops.fused_linear_cross_entropy(x, w, TARGET[0])
    made = calls.calls[0][2][-2].data_ptr()
    del calls
    loss.backward()
    assert w.grad.data_ptr() == made


def test_tied_embeddings():
    w = torch.randn(11, 9, dtype=f64, requires_grad=True)
    ids = TARGET.clamp(min=0)
    ops.fused_linear_cross_entropy(F.embedding(ids, w), w, TARGET).backward()
    other = w.detach().clone().requires_grad_()
    loss_formula(F.embedding(ids, other) @ other.t(), TARGET).backward()
    torch.testing.assert_close(w.grad, other.grad)


@pytest.mark.parametrize("dtype", [f32, bf16], ids=["f32", "bf16"])
def test_weights_of_another_type(dtype):
    x = torch.randn(4, 16).to(bf16 if dtype == f32 else f32).requires_grad_()
    w, b = torch.randn(16).to(dtype).requires_grad_(), torch.randn(16).to(dtype).requires_grad_()
    for y in (ops.rms_norm(x, w, casting="none"), ops.layer_norm(x, w, b)):
        assert y.dtype == x.dtype
        w.grad = None
        y.sum().backward()
        assert w.grad.dtype == dtype and x.grad.dtype == x.dtype
    head = torch.randn(11, 16).to(dtype).requires_grad_()
    ops.fused_linear_cross_entropy(x, head, TARGET[0, :4]).backward()
    assert head.grad.dtype == dtype


def test_autocast():
    x, w = torch.randn(5, 9, requires_grad=True), torch.randn(11, 9, requires_grad=True)
    with torch.autocast("cpu", bf16):
        y = ops.linear(x, w)
        loss = ops.fused_linear_cross_entropy(x, w, TARGET[0])
        q = ops.attention(*(torch.randn(1, 2, 3, 8) for _ in range(3)))
        norm = ops.rms_norm(y, torch.ones(11))
    assert y.dtype == q.dtype == norm.dtype == bf16 and loss.dtype == f32
    loss.backward()
    assert x.grad.dtype == w.grad.dtype == f32
    assert torch.equal(y, ops.linear(x.bfloat16(), w.bfloat16()))


MIXED = {
    "swiglu": (ops.swiglu, (5, 16), (5, 16)),
    "geglu": (ops.geglu, (5, 16), (5, 16)),
    "fused_add_rms_norm": (lambda x, r: ops.fused_add_rms_norm(x, r, torch.ones(16)), (5, 16), (5, 16)),
    "rope": (lambda q, k: ops.rope(q, k, COS.float(), SIN.float()), Q, K),
    "mrope": (lambda q, k: ops.mrope(q, k, COS3.float(), SIN3.float(), [1, 2, 1]), Q, K),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_types_under_autocast(name):
    """The wider one of two, as torch's operators have it; without autocast they are refused."""
    function, *shapes = MIXED[name]
    for types in ((f32, bf16), (bf16, f32)):
        inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape, dtype in zip(shapes, types)]
        with pytest.raises(RuntimeError, match=f"tigon: {name}: .*expected"):
            function(*inputs)
        wide = [t.detach().float().requires_grad_() for t in inputs]
        with torch.autocast("cpu", bf16):
            results, gradients = run(function, inputs)
        expected, wanted = run(function, wide)
        assert all(map(torch.equal, results, expected))
        assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(gradients, wanted))
        assert [g.dtype for g in gradients] == list(types)


def test_rope_of_tables_in_another_type():
    """They are taken in f32: the rotation is rounded once."""
    q, k = torch.randn(Q).bfloat16(), torch.randn(K).bfloat16()
    wanted = ops.rope(q.float(), k.float(), COS.float(), SIN.float())
    for a, b in zip(ops.rope(q, k, COS.float(), SIN.float()), wanted):
        assert torch.equal(a, b.bfloat16())


def test_heads_and_halves_are_not_copied():
    hidden = torch.randn(2, 6, 64)
    q, k = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in hidden.chunk(2, -1))
    cos, sin = (t.float() for t in tables(1, 6, 8))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ops.attention(q, k, k)
        ops.swiglu(*hidden.chunk(2, -1))
        ops.rms_norm(hidden[..., :32])
    assert not [e.key for e in profile.key_averages() if e.key in ("aten::clone", "aten::copy_", "aten::contiguous")]
    rotated, _ = ops.rope(q, k, cos, sin)
    assert rotated.stride() == torch.empty_like(q).stride()


def test_threads_change_no_bit():
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, *(3, 2, 4) * 4):  # what goes wrong between threads does not always
            torch.set_num_threads(threads)
            results.append(run(block, block_inputs(200, 3000)))  # many tasks of every operator
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        for a, b in zip(results[0][0] + results[0][1], others[0] + others[1]):
            assert torch.equal(a, b)


def test_metrics():
    x, w = CASES["fused_linear_dpo"].inputs(f64)
    loss, results = ops.fused_linear_dpo(x, w, PAIRS, ref_logps=LOGPS, beta=0.3, metrics=True)
    torch.testing.assert_close(results["chosen_logps"], sequence_logps(x, w, PAIRS)[:2].detach())
    torch.testing.assert_close(results["rejected_rewards"], 0.3 * (sequence_logps(x, w, PAIRS) - LOGPS)[2:].detach())
    assert not results["chosen_logps"].requires_grad and loss.requires_grad


def test_metrics_and_reference_layer_of_grpo():
    x, w = CASES["fused_linear_grpo"].inputs(f64)
    ref_x, ref_w = (t.detach() for t in CASES["fused_linear_grpo"].inputs(f64, seed=1))
    logits, reference = x @ w.t(), ref_x @ ref_w.t()
    ref_logp = reference[:, :5].log_softmax(-1).gather(-1, IDS[..., None])[..., 0]
    plain, wanted = ops.grpo_loss(logits, IDS, ADVANTAGES, OLD, ref_logp, MASK, beta=0.3, metrics=True)
    for given in (dict(ref_logp=ref_logp), dict(ref_x=ref_x, ref_weight=ref_w)):
        loss, metrics = ops.fused_linear_grpo(x, w, IDS, ADVANTAGES, None, OLD, mask=MASK, beta=0.3, metrics=True, **given)
        torch.testing.assert_close(loss, plain)
        assert metrics.keys() == wanted.keys() == {"kl", "clipped"}
        for name in wanted:
            torch.testing.assert_close(metrics[name], wanted[name])
    _, metrics = ops.fused_linear_grpo(x, w, IDS, ADVANTAGES, metrics=True)
    assert metrics.keys() == {"clipped"}


def test_reference_layer():
    x, w = CASES["fused_linear_dpo"].inputs(f64)
    ref_x, ref_w = CASES["fused_linear_dpo"].inputs(f64, seed=1)
    logps = sequence_logps(ref_x, ref_w, PAIRS).detach()
    a = ops.fused_linear_dpo(x, w, PAIRS, ref_x=ref_x.detach(), ref_weight=ref_w.detach())
    torch.testing.assert_close(a, ops.fused_linear_dpo(x, w, PAIRS, ref_logps=logps))


LABELS = torch.tensor([0, 1, 0, 1])


def attend(**options):
    return ops.attention(torch.ones(Q), torch.ones(K), torch.ones(K), **options)


def prefer(x=torch.ones(4, 3, 16), **options):
    return ops.fused_linear_dpo(x, torch.ones(5, 16), torch.zeros(4, 3, dtype=torch.long), **options)


ERRORS = {
    "rms_norm: weight is of 7 elements; expected 16": lambda x: ops.rms_norm(x, torch.ones(7)),
    "rms_norm: eps is -1; expected a number of at least 0": lambda x: ops.rms_norm(x, eps=-1.0),
    "rms_norm: casting is 'nobody'": lambda x: ops.rms_norm(x, casting="nobody"),
    "fused_add_rms_norm: residual is 2 x 16; expected 4 x 16, as x": lambda x: ops.fused_add_rms_norm(x, x[:2]),
    "swiglu: up is of bf16; expected f32, as gate": lambda x: ops.swiglu(x, x.bfloat16()),
    "rms_norm: x is of i64; expected f32, bf16, f16 or f64": lambda x: ops.rms_norm(x.long()),
    "rope: q has 2 dimensions; expected 4": lambda x: ops.rope(x, x, x, x),
    "rope: q is 2 x 5 x 4 x 8; expected \\[batch, heads, seq, d\\] with the 5 tokens of cos": lambda x: ops.rope(
        torch.ones(Q).transpose(1, 2), torch.ones(K).transpose(1, 2), torch.ones(5, 8), torch.ones(5, 8)),
    "rope: cos is 3 x 8; expected": lambda x: ops.rope(torch.ones(Q), torch.ones(K), torch.ones(3, 8), torch.ones(3, 8)),
    "attention: heads is no multiple of kv_heads": lambda x: ops.attention(
        torch.ones(1, 4, 2, 8), torch.ones(1, 3, 2, 8), torch.ones(1, 3, 2, 8)),
    "attention: v is 2 sequences x 2 heads x 4 tokens x 8; expected 2 sequences x 2 heads": lambda x: ops.attention(
        torch.ones(Q), torch.ones(K), torch.ones(2, 2, 4, 8)),
    "attention: v_head_dim is 0; expected at least 1": lambda x: ops.attention(
        torch.ones(Q), torch.ones(K), torch.ones(2, 2, 5, 0)),
    "attention: window is 0; expected an integer of at least 1": lambda x: attend(window=0),
    "attention: window is -5; expected an integer of at least 0": lambda x: attend(window=(-5, 0)),
    "attention: window is -1; expected an integer of at least 0": lambda x: attend(window=(None, -1)),
    "attention: window is True; expected an integer": lambda x: attend(window=True),
    "attention: window is 2.0; expected an integer": lambda x: attend(window=(2.0, 0)),
    "attention: window is of 3 numbers; expected one, or": lambda x: attend(window=(1, 2, 3)),
    "attention: softcap is 0.0; expected a number above 0, or None": lambda x: attend(softcap=0.0),
    "attention: scale is True; expected a number": lambda x: attend(scale=True),
    "attention: causal is of NoneType; expected True or False": lambda x: attend(causal=None),
    "attention: q_offset is False; expected an integer": lambda x: attend(q_offset=False),
    "attention: k is of 5 keys; expected at least 7, one a query": lambda x: ops.attention(
        torch.ones(2, 4, 7, 8), torch.ones(K), torch.ones(K)),
    "attention: cu_seqlens is of f32; expected i64 or i32": lambda x: attend(cu_seqlens=torch.tensor([0.0, 5.0])),
    "attention: cu_seqlens\\[1\\] is 4294967301; expected a position": lambda x: attend(
        cu_seqlens=torch.tensor([0, 2**32 + 5])),
    "attention: cu_seqlens is of 0 elements; expected 0 and the ends": lambda x: attend(
        cu_seqlens=torch.tensor([], dtype=torch.long)),
    "attention: key_begins is of 1 elements; expected 2, one an entry": lambda x: attend(key_begins=torch.tensor([1])),
    "attention: key_ends is of f32; expected i64 or i32": lambda x: attend(key_ends=torch.ones(2)),
    "attention: key_ends\\[0\\] is -1; expected a position": lambda x: attend(key_ends=torch.tensor([-1, 5])),
    "attention: key_ends is before key_begins or outside": lambda x: attend(key_ends=torch.tensor([6, 5])),
    "attention: sinks is of i64; expected f32": lambda x: attend(sinks=torch.zeros(4, dtype=torch.long)),
    "rms_norm: eps is True; expected a number": lambda x: ops.rms_norm(x, eps=True),
    "rms_norm: eps is '1e-6'; expected a number": lambda x: ops.rms_norm(x, eps="1e-6"),
    "rms_norm: x is of list; expected a tensor": lambda x: ops.rms_norm([1.0]),
    "rms_norm: weight is on meta; expected cpu, as x": lambda x: ops.rms_norm(x, torch.ones(16, device="meta")),
    "layer_norm: weight is of i64; expected f32, bf16, f16 or f64": lambda x: ops.layer_norm(x, torch.ones(16).long()),
    "linear: weight is of int64; expected f32, bf16, f16 or f64": lambda x: ops.linear(x, x.long()),
    "moe: down is of int64; expected f32": lambda x: ops.moe(x, torch.ones(3, 12, 16), torch.ones(3, 16, 6).long(),
                                                             LABELS[:, None], torch.ones(4, 1)),
    "linear: weight is of float8_e4m3fn; expected f32": lambda x: ops.linear(x, x.to(torch.float8_e4m3fn)),
    "moe: gate_up is of int64; expected f32": lambda x: ops.moe(x, torch.ones(3, 12, 16).long(), torch.ones(3, 16, 6),
                                                                LABELS[:, None], torch.ones(4, 1)),
    "moe: indices is of f32; expected i64 or i32": lambda x: ops.moe(x, torch.ones(3, 12, 16), torch.ones(3, 16, 6),
                                                                     torch.zeros(4, 1), torch.ones(4, 1)),
    "fused_linear_cross_entropy: weight is of int64; expected f32": lambda x: ops.fused_linear_cross_entropy(
        x, torch.ones(5, 16).long(), LABELS),
    "fused_linear_grpo: ref_weight is of int64; expected f32": lambda x: ops.fused_linear_grpo(
        torch.ones(4, 3, 16), torch.ones(5, 16), torch.zeros(4, 3).long(), torch.ones(4), beta=0.1,
        ref_x=torch.ones(4, 3, 16), ref_weight=torch.ones(5, 16).long()),
    "fused_linear_dpo: ref_x is of int64; expected f32": lambda x: prefer(
        ref_x=torch.ones(4, 3, 16).long(), ref_weight=torch.ones(5, 16)),
    "linear: bias is of i64; expected f32, bf16, f16 or f64": lambda x: ops.linear(x, x, torch.ones(4).long()),
    "rope: cos is of i64; expected f32": lambda x: ops.rope(torch.ones(Q), torch.ones(K),
                                                               *[torch.ones(5, 8).long()] * 2),
    "mrope: section is 1.0; expected an integer": lambda x: ops.mrope(torch.ones(Q), torch.ones(K), COS3, SIN3,
                                                                     [1.0, 2, 1]),
    "mrope: section is 4; expected three numbers": lambda x: ops.mrope(torch.ones(Q), torch.ones(K), COS3, SIN3, 4),
    "cross_entropy: target is 1 x 4; expected 4, one a row": lambda x: ops.cross_entropy(x, LABELS[None]),
    "cross_entropy: target is 4 x 1; expected 4, one a row": lambda x: ops.cross_entropy(x, LABELS[:, None]),
    "cross_entropy: target is 4; expected 2 x 2, one a row": lambda x: ops.cross_entropy(x.view(2, 2, 16), LABELS),
    "cross_entropy: target is of bool; expected i64 or i32": lambda x: ops.cross_entropy(x, LABELS == 0),
    "cross_entropy: ignore_index is True; expected an integer": lambda x: ops.cross_entropy(x, LABELS, True),
    "cross_entropy: softcap is 0.0; expected a number above 0": lambda x: ops.cross_entropy(x, LABELS, softcap=0.0),
    "cross_entropy: target is on meta; expected cpu, as logits": lambda x: ops.cross_entropy(x, LABELS.to("meta")),
    "fused_linear_cross_entropy: target is 1 x 4; expected 4, one": lambda x: ops.fused_linear_cross_entropy(
        x, torch.ones(5, 16), LABELS[None]),
    "fused_linear_cross_entropy: softcap is -1; expected": lambda x: ops.fused_linear_cross_entropy(
        x, torch.ones(5, 16), LABELS, softcap=-1),
    "jsd: labels is 1 x 4; expected 4, one a row": lambda x: ops.jsd(x, x, labels=LABELS[None]),
    "kl_div: log_target is 1; expected True or False": lambda x: ops.kl_div(x, x, log_target=1),
    "grpo_loss: logits is 3 x 4 x 16; expected 4 x 3 x columns, as ids, or one token more": lambda x: ops.grpo_loss(
        torch.ones(3, 4, 16), torch.zeros(4, 3).long(), torch.ones(4)),
    "grpo_loss: advantages is of i64; expected f32": lambda x: ops.grpo_loss(
        torch.ones(4, 3, 16), torch.zeros(4, 3).long(), LABELS),
    "grpo_loss: delta is 0.0; expected a number above 0, or None": lambda x: ops.grpo_loss(
        torch.ones(4, 3, 16), torch.zeros(4, 3).long(), torch.ones(4), delta=0.0),
    "fused_linear_grpo: x is 12 x 16; expected 4 x 3 x columns": lambda x: ops.fused_linear_grpo(
        torch.ones(12, 16), torch.ones(5, 16), torch.zeros(4, 3).long(), torch.ones(4)),
    "fused_linear_dpo: x is 3 x 4 x 16; expected 4 x 3 x columns, as target": lambda x: prefer(
        torch.ones(3, 4, 16)),
    "fused_linear_dpo: ref_logps is 3 x 4; expected 4 or 4 x 3": lambda x: prefer(ref_logps=torch.ones(3, 4)),
    "fused_linear_dpo: ref_bias is given without ref_x": lambda x: prefer(ref_bias=torch.ones(5)),
    "fused_linear_dpo: ref_x is 3 x 4 x 16; expected 4 x 3 x columns": lambda x: prefer(
        ref_x=torch.ones(3, 4, 16), ref_weight=torch.ones(5, 16)),
    "fused_linear_kto: desirable has 2 dimensions; expected 1": lambda x: ops.fused_linear_kto(
        torch.ones(4, 3, 16), torch.ones(5, 16), torch.zeros(4, 3).long(), LABELS.view(2, 2)),
    "fused_linear_dpo: beta is True; expected a number": lambda x: prefer(beta=True),
    "fused_linear_dpo: metrics is 1; expected True or False": lambda x: prefer(metrics=1),
    "fused_linear_dpo: loss is of list; expected a name": lambda x: prefer(loss=["sigmoid"]),
    "linear: x is 4 x 16; expected 9 columns": lambda x: ops.linear(x, torch.ones(3, 9)),
    "cross_entropy: target\\[1\\] is 16; expected at least 0 and below 16": lambda x: ops.cross_entropy(
        x, torch.tensor([0, 16, 1, 2])),
    "fused_linear_cross_entropy: target is 3; expected 4, one a row": lambda x: ops.fused_linear_cross_entropy(
        x, torch.ones(5, 16), torch.tensor([0, 1, 2])),
    "label_smoothing is 2; expected a number from 0 to 1": lambda x: ops.cross_entropy(
        x, torch.zeros(4, dtype=torch.long), label_smoothing=2.0),
    "label_smoothing is 0.3; expected 0": lambda x: ops.fused_linear_dpo(
        x.view(2, 2, 16), torch.ones(5, 16), torch.zeros(2, 2, dtype=torch.long), loss="hinge", label_smoothing=0.3),
    "moe: gate_up has 2 dimensions; expected 3": lambda x: ops.moe(x, x, x, EXPERTS, x),
    "moe: gate_up is 3 x 12 x 16; expected 3 x 14 x 16, by down": lambda x: ops.moe(
        x, torch.ones(3, 12, 16), torch.ones(3, 16, 7), LABELS[:, None], torch.ones(4, 1)),
    "moe: down_bias is 16; expected 3 x 16": lambda x: ops.moe(
        x, torch.ones(3, 12, 16), torch.ones(3, 16, 6), LABELS[:, None], torch.ones(4, 1), down_bias=torch.ones(16)),
    "moe: weights is 4 x 2; expected 4 x 1, as indices": lambda x: ops.moe(
        x, torch.ones(3, 12, 16), torch.ones(3, 16, 6), LABELS[:, None], torch.ones(4, 2)),
    "moe_router: groups is 3; expected a divisor of the number of experts, 16": lambda x: ops.moe_router(
        x, 2, groups=3),
    "moe_router: kept_groups is 5; expected at most groups, 4": lambda x: ops.moe_router(x, 2, groups=4, kept_groups=5),
    "moe_router: k is 5; expected at most 4, the experts that can be chosen": lambda x: ops.moe_router(
        x, 5, groups=8, kept_groups=2),
    "moe_router: k is 0; expected an integer of at least 1": lambda x: ops.moe_router(x, 0),
    "moe_router: bias is 4; expected 16, as logits has experts": lambda x: ops.moe_router(x, 2, torch.ones(4)),
    "moe_router: score is 'relu'; expected one of 'softmax', 'sigmoid', 'sqrt_softplus'": lambda x: ops.moe_router(
        x, 2, score="relu"),
    "limit is -1; expected a number above 0": lambda x: ops.swiglu(x, x, limit=-1.0),
    "rope: rotary_dim is 5; expected an even number": lambda x: ops.rope(
        torch.ones(Q), torch.ones(K), torch.ones(5, 8), torch.ones(5, 8), rotary_dim=5),
    "rope: pairs is 'twins'; expected one of 'halves', 'neighbours'": lambda x: ops.rope(x, x, x, x, pairs="twins"),
    "softmax: scale is 0; expected a finite number above 0": lambda x: ops.softmax(x, 0.0),
    "softmax: x is of i64; expected f32, bf16, f16 or f64": lambda x: ops.softmax(x.long()),
    "sparsemax: dim is 2; expected an axis of 2": lambda x: ops.sparsemax(x, 2),
    "embedding: padding_idx is 4; expected a row of 4": lambda x: ops.embedding(x, LABELS, 4),
    "embedding: ids\\[1\\] is 4; expected at least 0 and below 4": lambda x: ops.embedding(x, torch.tensor([0, 4])),
    "group_norm: num_groups is no divisor of the channels": lambda x: ops.group_norm(x, 3),
    "group_norm: x is of 1 dimensions; expected at least 2": lambda x: ops.group_norm(x[0], 1),
    "poly_norm: weight is of 4 elements; expected 3": lambda x: ops.poly_norm(x, torch.ones(4), torch.ones(1)),
    "modulated_rms_norm: scale is of 3 rows; expected a divisor of the 4": lambda x: ops.modulated_rms_norm(
        x, None, torch.ones(3, 16)),
    "dyt: gamma is of 7 elements; expected 16": lambda x: ops.dyt(x, torch.ones(1), torch.ones(7)),
    "qk_norm_rope: cos is 3 x 8; expected 5 x 8": lambda x: ops.qk_norm_rope(
        torch.ones(Q), torch.ones(K), torch.ones(3, 8), torch.ones(3, 8)),
    "kernel_size is 4; expected an odd number": lambda x: ops.neighborhood_attention(*[torch.ones(Q)] * 3, kernel_size=4),
    "neighborhood_attention: k is of f64; expected f32": lambda x: ops.neighborhood_attention(
        torch.ones(Q), torch.ones(Q).double(), torch.ones(Q)),
    "multi_token_attention: stride is of 3 numbers; expected one": lambda x: ops.multi_token_attention(
        torch.ones(Q), torch.ones(Q), stride=(1, 1, 1)),
    "attn_res: w_query is of 7 elements; expected 16": lambda x: ops.attn_res(x, torch.ones(7), torch.ones(16)),
    "mhc_pre: h_pre is 3; expected 4": lambda x: ops.mhc_pre(x, torch.ones(3)),
    "mhc_coeffs: tmax is 0; expected an integer of at least 1": lambda x: ops.mhc_coeffs(
        x, torch.ones(64, 24), torch.ones(24), *[torch.ones(())] * 3, tmax=0),
    "tiled_mlp: activation is 'relu'; expected one of": lambda x: ops.tiled_mlp(x, x, x, x.t(), "relu"),
    "tvd: teacher_probs is 2 x 16; expected 4 x 16": lambda x: ops.tvd(x, x[:2]),
    "cross_entropy_tvd: teacher_probs is 2 x 16; expected 4 x 16": lambda x: ops.cross_entropy_tvd(
        x, torch.arange(4), x[:2]),
    "cross_entropy_jsd: reduction is 'batchmean'; expected one of": lambda x: ops.cross_entropy_jsd(
        x, torch.arange(4), x, reduction="batchmean"),
    "fused_linear_jsd: the teacher is no layer and no logits": lambda x: ops.fused_linear_jsd(x, x),
    "fused_linear_jsd_distillation: target is 3; expected 4, one a row": lambda x: ops.fused_linear_jsd_distillation(
        x, x, LABELS[:3], x, x),
    "fused_linear_kl_div: teacher is 4 x 5; expected 4 x 4": lambda x: ops.fused_linear_kl_div(x, x, torch.ones(4, 5)),
    "logprobs: tokens is of list; expected a tensor": lambda x: ops.logprobs(x, x, [0]),
    "temperature is 0; expected a number from 1e-30 to 1e": lambda x: ops.logprobs(x, x, LABELS, temperature=0.0),
    "class_weight is of 3 elements; expected 16": lambda x: ops.cross_entropy(x, LABELS, class_weight=torch.ones(3)),
}


@pytest.mark.parametrize("sentence", ERRORS.keys())
def test_errors_are_sentences(sentence):
    with pytest.raises((ValueError, RuntimeError), match="^tigon: (\\w+: )?" + sentence):
        ERRORS[sentence](torch.ones(4, 16))


def test_callers_at_once_have_scratch_memory_of_their_own():
    """It is kept from call to call, and grows: 1 to 5 MiB here."""
    cases = [(torch.randn(rows, 300), torch.randn(700, 300)) for rows in (400, 1000, 700, 900)]
    expected = [ops.linear(x, w) for x, w in cases]
    failed = []

    def call(k):
        for _ in range(20):
            for j in range(len(cases)):
                which = (j + k) % len(cases)
                if not torch.equal(ops.linear(*cases[which]), expected[which]):
                    failed.append(which)

    callers = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failed


def test_errors_of_tasks_leave_the_threads_usable():
    x = torch.randn(4, 16)
    with pytest.raises((RuntimeError, ValueError)):  # PyTorch 2.11 makes the latter of it
        ops.cross_entropy(x, torch.full((4,), 99))
    assert torch.isfinite(ops.cross_entropy(x, torch.zeros(4, dtype=torch.long)))


# Functions of rows beside PyTorch's, and the shapes of their inputs for x of shape s.
ROWS = {
    "rms_norm": (lambda x, w: ops.rms_norm(x, w, 0.0), lambda x, w: rms(x, w, 0.0, 0.0), lambda s: (s, s[-1:])),
    "fused_add_rms_norm": (ops.fused_add_rms_norm, lambda x, r, w: (rms(x + r, w, 1e-6, 0.0), x + r),
                           lambda s: (s, s, s[-1:])),
    "layer_norm": (ops.layer_norm, lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), lambda s: (s, s[-1:], s[-1:])),
    "swiglu": (ops.swiglu, lambda g, u: F.silu(g) * u, lambda s: (s, s)),
    "geglu": (ops.geglu, lambda g, u: F.gelu(g, approximate="tanh") * u, lambda s: (s, s)),
    "linear": (ops.linear, F.linear, lambda s: (s, (4, *s[-1:]), (4,))),
    "linear_to_nothing": (ops.linear, F.linear, lambda s: (s, (0, *s[-1:]), (0,))),
    "cross_entropy": (lambda z: ops.cross_entropy(z, torch.zeros(z.shape[:-1], dtype=torch.long), reduction="sum"),
                      lambda z: F.cross_entropy(z.reshape(-1, z.shape[-1]), torch.zeros(z.shape[:-1].numel()).long(),
                                                reduction="sum"), lambda s: (s,) if s[-1] else None),
    "fused_linear_cross_entropy": (
        lambda x, w, b: ops.fused_linear_cross_entropy(x, w, torch.ones(x.shape[:-1], dtype=torch.long), b,
                                                       reduction="sum"),
        lambda x, w, b: F.cross_entropy(F.linear(x, w, b).reshape(-1, 4), torch.ones(x.shape[:-1].numel()).long(),
                                        reduction="sum"), lambda s: (s, (4, *s[-1:]), (4,))),
    "kl_div": (lambda s, t: ops.kl_div(s, t.exp(), reduction="sum"),
               lambda s, t: F.kl_div(s, t.exp(), reduction="sum"), lambda s: (s, s)),
}


@pytest.mark.parametrize("name", ROWS)
def test_any_leading_dimensions_and_any_inputs_that_are_trained(name):
    """None, of no rows, and rows without columns, where PyTorch has them."""
    ours, formula, shapes_of = ROWS[name]
    for lead, columns in itertools.product(((), (0,), (3,), (2, 0), (2, 3)), (0, 1, 5)):
        shapes = shapes_of((*lead, columns))
        if shapes is None:
            continue
        generator = torch.Generator().manual_seed(11)
        values = [torch.randn(s, generator=generator, dtype=f64) for s in shapes]
        for chosen in itertools.product((False, True), repeat=len(shapes)):
            results = []
            for f in (ours, formula):
                inputs = [t.clone().requires_grad_(wanted) for t, wanted in zip(values, chosen)]
                results.append(sum(run(f, inputs), []) if any(chosen) else [*as_tuple(f(*inputs))])
            for a, b in zip(*results):
                torch.testing.assert_close(a, b)


def test_empty_inputs():
    for case in ("rms_norm", "swiglu", "linear"):
        inputs = CASES[case].inputs(f32)
        inputs[0] = torch.empty(0, *inputs[0].shape[1:], requires_grad=True)
        if case == "swiglu":
            inputs[1] = inputs[0]
        y = CASES[case].ours(*inputs)
        assert y.numel() == 0 and y.shape == CASES[case].formula(*inputs).shape
        y.sum().backward()
        for t in inputs:
            assert t.grad.shape == t.shape and not t.grad.any()
    assert ops.cross_entropy(torch.randn(3, 5), torch.full((3,), -100)) == 0


# In a process of its own: the loss of a layer in f32 and its gradients in bf16, as numbers.
PROCESS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_ops, tigon_torch
inputs = test_ops.block_inputs()
half = [t.detach().bfloat16().requires_grad_() for t in inputs[:-1]] + inputs[-1:]
test_ops.BLOCK_COS, test_ops.BLOCK_SIN = test_ops.BLOCK_COS.bfloat16(), test_ops.BLOCK_SIN.bfloat16()
numbers = [test_ops.block(*inputs).item()]
test_ops.block(*half).backward()
print(tigon_torch.instruction_set(), *numbers, *[t.grad.float().norm().item() for t in half[:-1]])
"""


def process_with(wish):
    environment = {**os.environ, "TIGON_INSTRUCTION_SET": wish,
                   "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, "-c", PROCESS, os.path.dirname(__file__)], env=environment,
                          capture_output=True, text=True)


def test_instruction_sets_agree():
    unknown = process_with("x86-64-v9")
    assert unknown.returncode != 0
    known = re.search(r"TIGON_INSTRUCTION_SET is 'x86-64-v9'; expected one of (.*), which the library", unknown.stderr)
    known = known.group(1).split(", ")
    assert tigon_torch.instruction_set() in known
    results = {}
    for wish in known:
        process = process_with(wish)
        if "which this CPU lacks" not in process.stderr:
            assert process.returncode == 0, process.stderr
            name, *numbers = process.stdout.split()
            assert name == wish
            results[wish] = [float(n) for n in numbers]
    assert results
    first = next(iter(results.values()))
    for numbers in results.values():
        assert numbers[0] == pytest.approx(first[0], rel=1e-6)
        assert numbers[1:] == pytest.approx(first[1:], rel=2e-2)
