"""Functions over torch.ops.tigon, with autograd, fake implementations for torch.compile, and autocast.

Tensors are on the CPU, f32, bf16, f16 or f64. Divergences, policy and preference losses and experts in f16 are computed
in f32 and rounded once; so is every operator on a CPU without AVX2 and F16C. Inputs may have strides: what
lies in rows of one distance, or heads whose elements lie one by one, is not copied. Weights of norms, tables of rope and
biases may have any of the element types (f64 only beside f64). A parameter that does not require a gradient gets None,
and its gradient is not computed. Tables, references, advantages and log-probabilities of the past are constants: they
get no gradients. Gradients of gradients are right through rope, mrope and linear, and refused through the others, as
forward-mode derivatives are. Errors are ValueError or RuntimeError with tigon's sentence.
"""
import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import above_zero, checked, one_of, refuse, whole
from .registration import autograd, fake

_ops = torch.ops.tigon
_CASTING = {"llama": 0, "gemma": 1, "none": 2}
_REDUCTION = {"mean": 0, "sum": 1, "none": 2}
_HAS_F16 = _ops.has_f16()
_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _half(x):
    """Whether an operator that is not compiled for f16 has to be called in f32."""
    return x.dtype == torch.float16


def _unknown_half(x):
    """The same of an operator that is, on a CPU with f16."""
    return x.dtype == torch.float16 and not _HAS_F16


def _wide(t):
    return None if t is None else t.float() if t.dtype == torch.float16 else t


def _sums(x):
    """The type of sums over x."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _rows(x):
    return x.numel() // x.shape[-1] if x.shape[-1] != 0 else 0


def _made(x):
    return x.new_empty(x.shape)


def _gradient(parameter, wanted, like):
    return like.new_empty((parameter.numel() if wanted else 0,), dtype=parameter.dtype) if parameter is not None \
        else like.new_empty((0,), dtype=_sums(like))


def _or_none(gradient, wanted):
    return gradient if wanted else None


def _without_columns(x):
    return x.shape[-1:] == (0,)


def _of_no_columns(x, *parameters):
    """A norm of rows without columns, which depends on what a norm depends on."""
    y = x.clone()
    for parameter in parameters:
        y = y if parameter is None else y * parameter.to(x.dtype)
    return y


# ---- norms

@checked
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, offset: float = 0.0,
             casting: str = "llama") -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * (offset + weight) over the last axis, in the type of x.

    casting "llama" rounds the normalised row to the type of x before the weight, as Llama, Mistral and Qwen do; "gemma"
    and "none" round once.
    """
    cast = one_of(_CASTING, "rms_norm", "casting", casting)
    if _without_columns(x):
        return _of_no_columns(x, weight)
    if _unknown_half(x):
        return rms_norm(x.float(), weight, eps, offset, casting).half()
    return _ops.rms_norm(x, weight, eps, offset, cast)[0]


@fake("rms_norm")
def _(x, weight, eps, offset, casting):
    return _made(x), x.new_empty((_rows(x),), dtype=_sums(x))


@fake("rms_norm_backward")
def _(dy, x, weight, rstd, eps, offset, casting, need_dw):
    return _made(x), _gradient(weight, need_dw, x)


def _rms_norm_context(ctx, inputs, output):
    x, weight, ctx.eps, ctx.offset, ctx.casting = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, output[1])


def _rms_norm_backward(ctx, dy, _):
    x, weight, rstd = ctx.saved_tensors
    need_dx, need_dw = ctx.needs_input_grad[:2]
    dx, dw = _ops.rms_norm_backward(dy, x, weight, rstd, ctx.eps, ctx.offset, ctx.casting, need_dw)
    return _or_none(dx, need_dx), _or_none(dw, need_dw), None, None, None


autograd("rms_norm", _rms_norm_backward, _rms_norm_context)


@checked
def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6,
                       offset: float = 0.0, casting: str = "llama") -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) of s = x + residual, rounded to their type, in one pass."""
    cast = one_of(_CASTING, "fused_add_rms_norm", "casting", casting)
    if _without_columns(x):
        return _of_no_columns(x + residual, weight), x + residual
    if _unknown_half(x):
        y, s = fused_add_rms_norm(x.float(), residual.float(), weight, eps, offset, casting)
        return y.half(), s.half()
    return _ops.fused_add_rms_norm(x, residual, weight, eps, offset, cast)[:2]


@fake("fused_add_rms_norm")
def _(x, residual, weight, eps, offset, casting):
    return _made(x), _made(x), x.new_empty((_rows(x),), dtype=_sums(x))


@fake("fused_add_rms_norm_backward")
def _(dy, ds, s, weight, rstd, offset, casting, need_dw):
    return _made(s), _gradient(weight, need_dw, s)


def _fused_add_rms_norm_context(ctx, inputs, output):
    _, _, weight, _, ctx.offset, ctx.casting = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(output[1], weight, output[2])


def _fused_add_rms_norm_backward(ctx, dy, ds, _):
    if dy is None and ds is None:
        return (None,) * 6
    s, weight, rstd = ctx.saved_tensors
    need_x, need_r, need_dw = ctx.needs_input_grad[:3]
    dx, dw = _ops.fused_add_rms_norm_backward(dy, ds, s, weight, rstd, ctx.offset, ctx.casting, need_dw)
    return _or_none(dx, need_x), _or_none(dx, need_r), _or_none(dw, need_dw), None, None, None


autograd("fused_add_rms_norm", _fused_add_rms_norm_backward, _fused_add_rms_norm_context)


@checked
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) * rsqrt(var + eps) * weight + bias over the last axis, in the type of x."""
    if _without_columns(x):
        return _of_no_columns(x, weight, bias)
    if _unknown_half(x):
        return layer_norm(x.float(), weight, bias, eps).half()
    return _ops.layer_norm(x, weight, bias, eps)[0]


@fake("layer_norm")
def _(x, weight, bias, eps):
    return _made(x), x.new_empty((_rows(x),), dtype=_sums(x)), x.new_empty((_rows(x),), dtype=_sums(x))


@fake("layer_norm_backward")
def _(dy, x, weight, bias, mean, rstd, need_dw, need_db):
    return _made(x), _gradient(weight, need_dw, x), _gradient(bias, need_db, x)


def _layer_norm_context(ctx, inputs, output):
    x, weight, bias, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, weight, bias, *output[1:])


def _layer_norm_backward(ctx, dy, *_):
    need_dx, need_dw, need_db = ctx.needs_input_grad[:3]
    dx, dw, db = _ops.layer_norm_backward(dy, *ctx.saved_tensors, need_dw, need_db)
    return _or_none(dx, need_dx), _or_none(dw, need_dw), _or_none(db, need_db), None


autograd("layer_norm", _layer_norm_backward, _layer_norm_context)


# ---- gates

@checked
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up. The halves of one buffer are used where they lie."""
    if _unknown_half(gate):
        return swiglu(gate.float(), up.float()).half()
    return _ops.swiglu(gate, up)


@checked
def geglu(gate: Tensor, up: Tensor, approximate: str = "tanh") -> Tensor:
    """gelu(gate) * up; approximate is "tanh" or "none", as in torch.nn.functional.gelu."""
    tanh = one_of({"tanh": True, "none": False}, "geglu", "approximate", approximate)
    if _unknown_half(gate):
        return geglu(gate.float(), up.float(), approximate).half()
    return _ops.geglu(gate, up, tanh)


fake("swiglu", lambda gate, up: _made(gate))
fake("swiglu_backward", lambda dy, gate, up, *need: tuple(_empty_or(gate, gate.shape, n) for n in need))
fake("geglu", lambda gate, up, tanh: _made(gate))
fake("geglu_backward",
     lambda dy, gate, up, tanh, *need: tuple(_empty_or(gate, gate.shape, n) for n in need))


def _gate_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.form = inputs[2:]


def _gate_backward(op, ctx, dy):
    need = ctx.needs_input_grad[:2]
    gradients = op(dy, *ctx.saved_tensors, *ctx.form, *need)
    return tuple(map(_or_none, gradients, need)) + (None,) * len(ctx.form)


autograd("swiglu", lambda ctx, dy: _gate_backward(_ops.swiglu_backward, ctx, dy), _gate_context)
autograd("geglu", lambda ctx, dy: _gate_backward(_ops.geglu_backward, ctx, dy), _gate_context)


# ---- rotary position embedding

@checked
def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q and k [batch, heads, seq, d] with the pairs (j, j + r/2) of their first r columns rotated.

    cos and sin [1 or batch, seq, r] or [seq, r], as transformers makes them: their second half repeats the first and is
    not read. r < d leaves the other columns as they are. Tables get no gradients.
    """
    if _unknown_half(q):
        q, k = rope(q.float(), k.float(), cos, sin)
        return q.half(), k.half()
    return _ops.rope(q, k, cos, sin, False)


@checked
def mrope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, section) -> tuple[Tensor, Tensor]:
    """The same with angles of time, height and width: cos and sin [3, batch, seq, d], section three numbers of pairs
    whose sum is d/2."""
    if not isinstance(section, (list, tuple)):
        refuse("mrope", "section", section, "three numbers")
    if _unknown_half(q):
        q, k = mrope(q.float(), k.float(), cos, sin, section)
        return q.half(), k.half()
    return _ops.mrope(q, k, cos, sin, [whole("mrope", "section", n, 0) for n in section], False)


def _heads_like(t):
    made = torch.empty_like(t)
    return made if made.stride(3) == 1 else _made(t)


def _rotated(q, k, *_):
    return _heads_like(q), q.new_empty((0,)) if k is None else _heads_like(k)


fake("rope", _rotated)
fake("mrope", _rotated)


def _rotary_context(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[2], inputs[3])
    ctx.section, ctx.backward = inputs[4:-1], inputs[-1]


def _rotary_backward(op, ctx, dq, dk):
    """The rotation the other way round, whose own gradient is a rotation again."""
    wanted = [g if need else None for g, need in zip((dq, dk), ctx.needs_input_grad)]
    if any(g is not None for g in wanted):
        there = [g for g in wanted if g is not None]
        made = iter(op(there[0], there[1] if len(there) > 1 else None, *ctx.saved_tensors, *ctx.section,
                       not ctx.backward))
        wanted = [None if g is None else next(made) for g in wanted]
    return (*wanted, None, None) + (None,) * len(ctx.section) + (None,)


autograd("rope", lambda ctx, dq, dk: _rotary_backward(_ops.rope, ctx, dq, dk), _rotary_context,
         differentiable=True)
autograd("mrope", lambda ctx, dq, dk: _rotary_backward(_ops.mrope, ctx, dq, dk), _rotary_context,
         differentiable=True)


# ---- attention and linear layers

def _autocast(*tensors):
    """The tensors in autocast's type where it is on for the CPU, as torch's own matrix products are called."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    to = torch.get_autocast_dtype("cpu")
    return tuple(t if t is None or t.dtype == torch.float64 or not t.is_floating_point() else t.to(to) for t in tensors)


def _in_type_of(x, op, **weights):
    """The weights in the type of x; integers and numbers of 8 bits, which have a scale beside them, are none."""
    for name, w in weights.items():
        if w is not None and w.dtype not in _TYPES:
            refuse(op, name, f"of {str(w.dtype)[6:]}", "f32, bf16, f16 or f64")
    return tuple(None if w is None else w.to(x.dtype) for w in weights.values())


def _window(window):
    """The keys to the left and to the right that a query sees, -1 for all of them."""
    if window is None:
        return -1, -1
    if isinstance(window, (tuple, list)):
        if len(window) != 2:
            refuse("attention", "window", f"of {len(window)} numbers", "one, or (left, right)")
        return tuple(-1 if side is None else whole("attention", "window", side, 0) for side in window)
    return (whole("attention", "window", window, 1) - 1,) * 2


@checked
def attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, causal: bool = True, window=None,
              softcap: float | None = None, sinks: Tensor | None = None, cu_seqlens: Tensor | None = None,
              q_offset: int | None = None) -> Tensor:
    """Softmax attention of q [batch, heads, queries, d] over k, v [batch, kv_heads, keys, d], any strides.

    scale None is 1 / sqrt(d). window: as many keys as a query sees, its own among them, or (left, right) keys beside
    it, None for all. softcap, above 0: scores become softcap * tanh(score / softcap). sinks [heads]: a logit of every
    head beside its scores. cu_seqlens: 0 and the ends of packed documents, the same for every batch entry. q_offset:
    position of the first query among the keys; None is keys - queries with causal, as a cache before them needs. The
    result lies in memory as [batch, queries, heads, d].
    """
    q, k, v = _autocast(q, k, v)
    if _unknown_half(q):
        return attention(q.float(), k.float(), v.float(), scale, causal, window, softcap, sinks, cu_seqlens,
                         q_offset).half()
    left, right = _window(window)
    if q_offset is None:
        q_offset = k.shape[2] - q.shape[2] if causal and q.dim() == k.dim() == 4 else 0
        if q_offset < 0:
            refuse("attention", "k", f"of {k.shape[2]} keys", f"at least {q.shape[2]}, one a query, or a q_offset")
    if scale == 0:
        q = q * 0.0  # tigon's scale of 0 stands for 1 / sqrt(d)
    return _ops.attention(q, k, v, sinks, cu_seqlens, 0.0 if scale is None else scale, causal, left, right,
                          above_zero("attention", "softcap", softcap), q_offset)[0]


def _token_major(t):
    b, h, s, d = t.shape
    return t.new_empty((b, s, h, d)).transpose(1, 2)


@fake("attention")
def _(q, k, v, sinks, cu_seqlens, scale, causal, left, right, softcap, offset):
    return _token_major(q), q.new_empty(q.shape[:3], dtype=_sums(q))


@fake("attention_backward")
def _(d_o, q, k, v, o, lse, sinks, cu_seqlens, scale, causal, left, right, softcap, offset, *need):
    wanted = need[3] and sinks is not None
    dsinks = q.new_empty((sinks.numel() if wanted else 0,), dtype=torch.float32 if sinks is None else sinks.dtype)
    made = [_token_major(t) if n else t.new_empty((0,)) for t, n in zip((q, k, v), need)]
    return *made, dsinks


def _attention_context(ctx, inputs, output):
    ctx.options = inputs[5:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:5])


def _attention_backward(ctx, d_o, _):
    need = ctx.needs_input_grad[:4]
    gradients = _ops.attention_backward(d_o, *ctx.saved_tensors, *ctx.options, *need)
    return tuple(map(_or_none, gradients, need)) + (None,) * (1 + len(ctx.options))


autograd("attention", _attention_backward, _attention_context)


@checked
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias for x [..., k] and weight [n, k], summed in f32 (f64 for f64) and rounded once.

    A weight of another type than x is converted to it, as autocast does.
    """
    x, weight = _autocast(x, weight)
    weight, = _in_type_of(x, "linear", weight=weight)
    if weight.numel() == 0:
        return F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    if _unknown_half(x):
        return linear(x.float(), weight.float(), None if bias is None else bias.float()).half()
    return _ops.linear(x, weight, bias)


fake("linear", lambda x, weight, bias: x.new_empty((*x.shape[:-1], weight.shape[0])))


def _empty_or(like, shape, wanted):
    return like.new_empty(shape if wanted else (0,))


@fake("linear_backward")
def _(dy, x, weight, need_dx, need_dw):
    return _empty_or(x, x.shape, need_dx), _empty_or(x, weight.shape, need_dw)


def _linear_context(ctx, inputs, output):
    x, weight, bias = inputs
    ctx.bias_type = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _linear_backward(ctx, dy):
    x, weight = ctx.saved_tensors
    need_dx, need_dw, need_db = ctx.needs_input_grad
    dx = dw = db = None
    if need_dx or need_dw:
        dx, dw = _ops.linear_backward(dy, x, weight, need_dx, need_dw)
    if need_db:
        db = dy[None].flatten(0, -2).sum(0, dtype=_sums(dy)).to(ctx.bias_type)
    return _or_none(dx, need_dx), _or_none(dw, need_dw), db


def _linear_backward_context(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3])


def _linear_twice_backward(ctx, ddx, ddw):
    """Of dx = dy w and dw = dy^T x."""
    dy, x, weight = ctx.saved_tensors
    need_dy, need_dx, need_dw = ctx.needs_input_grad[:3]
    of_dy = of_x = of_weight = None
    if ddx is not None:
        of_dy = _ops.linear(ddx, weight, None) if need_dy else None
        of_weight = _ops.linear_backward(dy, ddx, weight, False, True)[1] if need_dw else None
    if ddw is not None:
        if need_dy:
            through_dw = _ops.linear(x, ddw, None)
            of_dy = through_dw if of_dy is None else of_dy + through_dw
        of_x = _ops.linear_backward(dy, x, ddw, True, False)[0] if need_dx else None
    return of_dy, of_x, of_weight, None, None


autograd("linear", _linear_backward, _linear_context, differentiable=True)
autograd("linear_backward", _linear_twice_backward, _linear_backward_context, differentiable=True)


# ---- cross entropy

@checked
def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0,
                  z_loss: float = 0.0, softcap: float | None = None, reduction: str = "mean") -> Tensor:
    """Cross entropy over the last axis of logits [..., vocab] with target [...], in f32 (f64 for f64).

    z_loss is the weight of lse^2; softcap makes softcap * tanh(logits / softcap) of the logits first. Nothing but the
    logits is kept for backward.
    """
    how = one_of(_REDUCTION, "cross_entropy", "reduction", reduction)
    if _unknown_half(logits):
        logits = logits.float()
    return _ops.cross_entropy(logits, target, ignore_index, label_smoothing, z_loss,
                              above_zero("cross_entropy", "softcap", softcap), how)


def _loss_like(x, target, reduction):
    return x.new_empty(target.shape if reduction == 2 else (), dtype=_sums(x))


fake("cross_entropy", lambda logits, target, *options: _loss_like(logits, target, options[-1]))
fake("cross_entropy_backward", lambda upstream, logits, *_: _made(logits))


def _cross_entropy_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.options = inputs[2:]


def _cross_entropy_backward(ctx, upstream):
    return (_ops.cross_entropy_backward(upstream, *ctx.saved_tensors, *ctx.options),) + (None,) * 6


autograd("cross_entropy", _cross_entropy_backward, _cross_entropy_context)


def _wanted(*tensors):
    """Which gradients a fused loss has to make in forward."""
    on = torch.is_grad_enabled()
    return [on and t is not None and t.requires_grad for t in tensors]


def _is_one(g):
    """Whether an upstream gradient is known to be 1; what is being traced is not known."""
    return type(g) is Tensor and not torch.compiler.is_compiling() and g.numel() == 1 and g.item() == 1


class _Made:
    """Gradients that were made in forward, for one backward: they then belong to who asked, and may become .grad."""

    def __init__(self, gradients):
        self.gradients = gradients

    def take(self, upstream):
        """Times the upstream gradient, or None after the first time."""
        gradients, self.gradients = self.gradients, None
        if gradients is None or _is_one(upstream):
            return gradients
        return tuple(g if g.numel() == 0 else g * upstream.to(g.dtype) for g in gradients)


@checked
def fused_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                               ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                               softcap: float | None = None, reduction: str = "mean") -> Tensor:
    """cross_entropy(x weight^T + bias, target) without the logits ever being in memory as a whole.

    x [..., hidden], weight [vocab, hidden], target [...]. The gradients that are required are made in forward; with
    reduction "none", and in a second backward through a retained graph, the logits are made again.
    """
    how = one_of(_REDUCTION, "fused_linear_cross_entropy", "reduction", reduction)
    cap = above_zero("fused_linear_cross_entropy", "softcap", softcap)
    x, weight = _autocast(x, weight)
    if weight.shape[-1:] == (0,):
        return cross_entropy(linear(x, weight, bias), target, ignore_index, label_smoothing, z_loss, softcap, reduction)
    if _unknown_half(x):
        x, weight = x.float(), weight.float()
    weight, = _in_type_of(x, "fused_linear_cross_entropy", weight=weight)
    need = _wanted(x, weight, bias) if how != _REDUCTION["none"] else [False] * 3
    return _ops.fused_linear_cross_entropy(x, weight, bias, target, ignore_index, label_smoothing, z_loss, cap, how,
                                           *need)[0]


def _layer_gradients(x, weight, bias, need_dx, need_dw, need_db):
    need_db = need_db and bias is not None
    return (_empty_or(x, x.shape, need_dx), _empty_or(x, weight.shape, need_dw),
            x.new_empty((weight.shape[0] if need_db else 0,), dtype=x.dtype if bias is None else bias.dtype))


@fake("fused_linear_cross_entropy")
def _(x, weight, bias, target, ignore_index, label_smoothing, z_loss, softcap, reduction, *need):
    return _loss_like(x, target, reduction), *_layer_gradients(x, weight, bias, *need)


@fake("fused_linear_cross_entropy_backward")
def _(upstream, x, weight, bias, target, ignore_index, label_smoothing, z_loss, softcap, reduction, *need):
    return _layer_gradients(x, weight, bias, *need)


def _fused_linear_cross_entropy_context(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.options, need = inputs[4:9], inputs[9:]
    ctx.made = _Made(output[1:] if any(need) else None)
    ctx.save_for_backward(*inputs[:4])


def _fused_linear_cross_entropy_backward(ctx, upstream, *_):
    need = ctx.needs_input_grad[:3]
    if upstream is None:
        return (None,) * 12
    gradients = ctx.made.take(upstream)
    if gradients is None:
        gradients = _ops.fused_linear_cross_entropy_backward(upstream, *ctx.saved_tensors, *ctx.options, *need)
    return tuple(map(_or_none, gradients, need)) + (None,) * 9


autograd("fused_linear_cross_entropy", _fused_linear_cross_entropy_backward, _fused_linear_cross_entropy_context)


# ---- divergences

@checked
def jsd(student_log_probs: Tensor, teacher_log_probs: Tensor, beta: float = 0.5, labels: Tensor | None = None,
        ignore_index: int = -100) -> Tensor:
    """Generalised Jensen-Shannon divergence of log-probabilities [..., vocab], a mean over the rows whose label is not
    ignore_index. beta is the weight of the teacher: 0 is KL(teacher || student), 1 the reverse."""
    if _half(student_log_probs):
        student_log_probs, teacher_log_probs = student_log_probs.float(), teacher_log_probs.float()
    return _ops.jsd(student_log_probs, teacher_log_probs, labels, beta, ignore_index, *_wanted(student_log_probs))[0]


@fake("jsd")
def _(student, teacher, labels, beta, ignore_index, need):
    return student.new_empty((), dtype=_sums(student)), _empty_or(student, student.shape, need)


def _jsd_context(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.options = inputs[3:5]
    ctx.made = _Made(output[1:] if inputs[5] else None)
    ctx.save_for_backward(*inputs[:3])


def _jsd_backward(ctx, upstream, _):
    if upstream is None:
        return (None,) * 6
    student, teacher, labels = ctx.saved_tensors
    beta, ignore_index = ctx.options
    ds = dt = None
    if ctx.needs_input_grad[0]:
        made = ctx.made.take(upstream)
        ds = made[0] if made is not None else \
            _ops.jsd(student, teacher, labels, beta, ignore_index, True)[1] * upstream.to(student.dtype)
    if ctx.needs_input_grad[1]:
        dt = _ops.jsd(teacher, student, labels, 1 - beta, ignore_index, True)[1] * upstream.to(teacher.dtype)
    return ds, dt, None, None, None, None


autograd("jsd", _jsd_backward, _jsd_context)

_DIVERGENCE_REDUCTION = {"batchmean": 0, "mean": 1, "sum": 2, "none": 3}


@checked
def kl_div(student_log_probs: Tensor, teacher: Tensor, log_target: bool = False, eps: float = 0.0,
           reduction: str = "batchmean") -> Tensor:
    """Kullback-Leibler divergence of the teacher's probabilities (their logarithms with log_target) from the student's
    log-probabilities, as torch.nn.functional.kl_div; batchmean divides by the rows."""
    how = one_of(_DIVERGENCE_REDUCTION, "kl_div", "reduction", reduction)
    if _without_columns(student_log_probs):
        terms = (student_log_probs * teacher).to(_sums(student_log_probs))
        return terms if reduction == "none" else terms.sum()
    if _half(student_log_probs):
        student_log_probs, teacher = student_log_probs.float(), teacher.float()
    return _ops.kl_div(student_log_probs, teacher, log_target, eps, how)


@fake("kl_div")
def _(student, teacher, log_target, eps, reduction):
    return student.new_empty(student.shape if reduction == 3 else (), dtype=_sums(student))


@fake("kl_div_backward")
def _(upstream, student, teacher, log_target, eps, reduction, need_student, need_teacher):
    return _empty_or(student, student.shape, need_student), _empty_or(student, teacher.shape, need_teacher)


def _kl_div_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.options = inputs[2:]


def _kl_div_backward(ctx, upstream):
    need = ctx.needs_input_grad[:2]
    gradients = _ops.kl_div_backward(upstream, *ctx.saved_tensors, *ctx.options, *need)
    return tuple(map(_or_none, gradients, need)) + (None,) * 3


autograd("kl_div", _kl_div_backward, _kl_div_context)


# ---- policy losses

_POLICY = {"grpo": 0, "bnpo": 1, "dr_grpo": 2, "dapo": 3, "luspo": 4, "cispo": 5, "sapo": 6, "vespo": 7, "gmpo": 8}


def _policy_kind(op, type, level, luspo_reduction):
    return (one_of(_POLICY, op, "type", type), one_of({"token": 0, "sequence": 1}, op, "level", level),
            one_of({"sequences": 0, "tokens": 1, "padded": 2}, op, "luspo_reduction", luspo_reduction))


def _limits(op, **limits):
    return (above_zero(op, name, limit) for name, limit in limits.items())


@checked
def grpo_loss(logits: Tensor, ids: Tensor, advantages: Tensor, old_logp: Tensor | None = None,
              ref_logp: Tensor | None = None, mask: Tensor | None = None, sampling_ratio: Tensor | None = None,
              type: str = "dapo", level: str = "token", luspo_reduction: str = "sequences", reduce: bool = True,
              bias_corrected_kl: bool = False, temperature: float = 1.0, beta: float = 0.0, epsilon_low: float = 0.2,
              epsilon_high: float = 0.2, delta: float | None = None, max_log_ratio: float | None = None,
              tau_positive: float = 1.0, tau_negative: float = 1.05, k_positive: float = 2.0,
              lambda_positive: float = 3.0, k_negative: float = 3.0, lambda_negative: float = 2.0,
              max_length: float | None = None, denominator: float | None = None, metrics: bool = False):
    """The losses of the GRPO family on logits [batch, len or len + 1, vocab] of ids [batch, len].

    advantages [batch]; old_logp, ref_logp, mask [batch, len]; sampling_ratio [batch, len] or [batch, 1]. The options
    are those of tigon::policy_options, None where a 0 there is no limit. With reduce=False the result is one number a
    token. With metrics=True it is (loss, {"kl", "clipped"}); kl is there with ref_logp.
    """
    delta, max_log_ratio, max_length, denominator = _limits(
        "grpo_loss", delta=delta, max_log_ratio=max_log_ratio, max_length=max_length, denominator=denominator)
    numbers = [temperature, beta, epsilon_low, epsilon_high, delta, max_log_ratio, tau_positive, tau_negative,
               k_positive, lambda_positive, k_negative, lambda_negative, max_length, denominator]
    if _half(logits):
        logits = logits.float()
    loss, kl, clipped, _ = _ops.grpo_loss(
        logits, ids, advantages, old_logp, ref_logp, mask, sampling_ratio,
        *_policy_kind("grpo_loss", type, level, luspo_reduction), reduce, bias_corrected_kl,
        [float(n) for n in numbers])
    if not metrics:
        return loss
    return loss, {"clipped": clipped} if ref_logp is None else {"clipped": clipped, "kl": kl}


@fake("grpo_loss")
def _(logits, ids, advantages, old_logp, ref_logp, mask, sampling_ratio, type, level, luspo, reduce, *_):
    def made():
        return logits.new_empty(() if reduce else ids.shape, dtype=_sums(logits))
    kl = made() if ref_logp is not None else logits.new_empty((0,), dtype=_sums(logits))
    return made(), kl, made(), logits.new_empty((_rows(logits), 2), dtype=_sums(logits))


fake("grpo_loss_backward", lambda upstream, saved, logits, *_: _made(logits))


def _grpo_loss_context(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(output[3], *inputs[:7])
    ctx.options = inputs[7:]


def _grpo_loss_backward(ctx, upstream, *_):
    return (_ops.grpo_loss_backward(upstream, *ctx.saved_tensors, *ctx.options),) + (None,) * 12


autograd("grpo_loss", _grpo_loss_backward, _grpo_loss_context)


@checked
def fused_linear_grpo(x: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor, bias: Tensor | None = None,
                      old_logp: Tensor | None = None, ref_logp: Tensor | None = None, mask: Tensor | None = None,
                      sampling_ratio: Tensor | None = None, ref_x: Tensor | None = None,
                      ref_weight: Tensor | None = None, ref_bias: Tensor | None = None, type: str = "dapo",
                      level: str = "token", luspo_reduction: str = "sequences", reduce: bool = True,
                      bias_corrected_kl: bool = False, temperature: float = 1.0, beta: float = 0.0,
                      epsilon_low: float = 0.2, epsilon_high: float = 0.2, delta: float | None = None,
                      max_log_ratio: float | None = None, tau_positive: float = 1.0, tau_negative: float = 1.05,
                      k_positive: float = 2.0, lambda_positive: float = 3.0, k_negative: float = 3.0,
                      lambda_negative: float = 2.0, max_length: float | None = None, denominator: float | None = None,
                      metrics: bool = False):
    """grpo_loss(x weight^T + bias, ids, ...) without the logits ever being in memory as a whole.

    x [batch, len or len + 1, hidden], weight [vocab, hidden], ids [batch, len]. The reference is ref_logp, or a layer
    (ref_x, ref_weight, ref_bias) at the same temperature. The gradients that are required are made in forward; with
    reduce=False, and in a second backward through a retained graph, the logits are made again.
    """
    delta, max_log_ratio, max_length, denominator = _limits(
        "fused_linear_grpo", delta=delta, max_log_ratio=max_log_ratio, max_length=max_length, denominator=denominator)
    numbers = [temperature, beta, epsilon_low, epsilon_high, delta, max_log_ratio, tau_positive, tau_negative,
               k_positive, lambda_positive, k_negative, lambda_negative, max_length, denominator]
    x, weight, ref_x, ref_weight = _autocast(x, weight, ref_x, ref_weight)
    if _half(x):
        x, weight, ref_x, ref_weight = map(_wide, (x, weight, ref_x, ref_weight))
    weight, ref_x, ref_weight = _in_type_of(x, "fused_linear_grpo", weight=weight, ref_x=ref_x, ref_weight=ref_weight)
    need = _wanted(x, weight, bias) if reduce else [False] * 3
    loss, kl, clipped = _ops.fused_linear_grpo(
        x, weight, bias, ids, advantages, old_logp, ref_logp, mask, sampling_ratio, ref_x, ref_weight, ref_bias, None,
        *_policy_kind("fused_linear_grpo", type, level, luspo_reduction), reduce, bias_corrected_kl,
        [float(n) for n in numbers], *need)[:3]
    if not metrics:
        return loss
    return loss, {"clipped": clipped} if ref_logp is None and ref_x is None else {"clipped": clipped, "kl": kl}


@fake("fused_linear_grpo")
def _(x, weight, bias, ids, advantages, old_logp, ref_logp, mask, sampling_ratio, ref_x, ref_weight, ref_bias, upstream,
      type, level, luspo, reduce, bias_corrected_kl, scalars, *need):
    def made():
        return x.new_empty(() if reduce else ids.shape, dtype=_sums(x))
    kl = x.new_empty((0,), dtype=_sums(x)) if ref_logp is None and ref_x is None else made()
    return made(), kl, made(), *_layer_gradients(x, weight, bias, *need)


def _fused_linear_grpo_context(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.options, need = inputs[13:19], inputs[19:]
    ctx.made = _Made(output[3:] if any(need) else None)
    ctx.save_for_backward(*inputs[:12])


def _fused_linear_grpo_backward(ctx, upstream, *_):
    need = ctx.needs_input_grad[:3]
    if upstream is None:
        return (None,) * 22
    gradients = ctx.made.take(upstream)
    if gradients is None:
        gradients = _ops.fused_linear_grpo(*ctx.saved_tensors, upstream, *ctx.options, *need)[3:]
    return tuple(map(_or_none, gradients, need)) + (None,) * 19


autograd("fused_linear_grpo", _fused_linear_grpo_backward, _fused_linear_grpo_context)


# ---- preference losses

_DPO = {name: i for i, name in enumerate(
    ["sigmoid", "hinge", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop",
     "ipo"])}
_DPO_KIND, _ORPO, _SIMPO, _CPO, _KTO = range(5)


def _preference(kind, x, weight, target, bias, reference=(None,) * 4, nll_target=None, desirable=None, kl=None, dpo=0,
                ignore_index=-100, nll=False, average=False, beta=0.1, label_smoothing=0.0, discopop_tau=0.05,
                gamma=0.0, alpha=1.0, desirable_weight=1.0, undesirable_weight=1.0, metrics=False):
    x, weight, ref_x, ref_weight = _autocast(x, weight, *reference[:2])
    if _half(x):
        x, weight, ref_x, ref_weight = map(_wide, (x, weight, ref_x, ref_weight))
    weight, ref_x, ref_weight = _in_type_of(x, "fused_linear_preference", weight=weight, ref_x=ref_x,
                                            ref_weight=ref_weight)
    numbers = [beta, label_smoothing, discopop_tau, gamma, alpha, desirable_weight, undesirable_weight]
    loss, results = _ops.fused_linear_preference(
        x, weight, bias, target, nll_target, desirable, kl, ref_x, ref_weight, *reference[2:], kind, dpo, ignore_index,
        nll, average, [float(n) for n in numbers], *_wanted(x, weight, bias))[:2]
    if not metrics:
        return loss
    if kind == _KTO:
        return loss, dict(zip(("logps", "rewards"), results.chunk(2)))
    pairs = target.shape[0] // 2
    names = ("chosen_logps", "rejected_logps", "chosen_rewards", "rejected_rewards", "nll_loss", "metrics")
    return loss, dict(zip(names, results.split([pairs] * 4 + [1, 2])))


@checked
def fused_linear_dpo(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ref_x: Tensor | None = None,
                     ref_weight: Tensor | None = None, ref_bias: Tensor | None = None, ref_logps: Tensor | None = None,
                     nll_target: Tensor | None = None, loss: str = "sigmoid", beta: float = 0.1,
                     label_smoothing: float = 0.0, discopop_tau: float = 0.05, compute_nll_loss: bool = False,
                     average_log_prob: bool = False, alpha: float = 1.0, ignore_index: int = -100,
                     metrics: bool = False):
    """Direct preference optimisation of hidden states x [2 pairs, len, hidden], the chosen sequences first, with
    target [2 pairs, len] and the layer weight [vocab, hidden].

    The reference is a layer (ref_x, ref_weight, ref_bias) or its log-probabilities ref_logps, of every sequence or of
    every token. loss names one of tigon::dpo_loss. With metrics=True the result is (loss, dict of results).
    """
    return _preference(_DPO_KIND, x, weight, target, bias, (ref_x, ref_weight, ref_bias, ref_logps), nll_target,
                       dpo=one_of(_DPO, "fused_linear_dpo", "loss", loss), beta=beta, label_smoothing=label_smoothing,
                       discopop_tau=discopop_tau, nll=compute_nll_loss, average=average_log_prob, alpha=alpha,
                       ignore_index=ignore_index, metrics=metrics)


@checked
def fused_linear_orpo(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                      nll_target: Tensor | None = None, beta: float = 0.1, compute_nll_loss: bool = True,
                      alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
    """Odds-ratio preference optimisation; arguments as fused_linear_dpo."""
    return _preference(_ORPO, x, weight, target, bias, nll_target=nll_target, beta=beta, nll=compute_nll_loss,
                       average=True, alpha=alpha, ignore_index=ignore_index, metrics=metrics)


@checked
def fused_linear_simpo(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, beta: float = 0.1,
                       gamma: float = 0.5, label_smoothing: float = 0.0, compute_nll_loss: bool = False,
                       alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
    """Simple preference optimisation, with the margin gamma; arguments as fused_linear_dpo."""
    return _preference(_SIMPO, x, weight, target, bias, beta=beta, gamma=gamma, label_smoothing=label_smoothing,
                       nll=compute_nll_loss, average=True, alpha=alpha, ignore_index=ignore_index, metrics=metrics)


@checked
def fused_linear_cpo(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, beta: float = 0.1,
                     label_smoothing: float = 0.0, compute_nll_loss: bool = True, average_log_prob: bool = False,
                     alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
    """Contrastive preference optimisation; arguments as fused_linear_dpo."""
    return _preference(_CPO, x, weight, target, bias, beta=beta, label_smoothing=label_smoothing, nll=compute_nll_loss,
                       average=average_log_prob, alpha=alpha, ignore_index=ignore_index, metrics=metrics)


@checked
def fused_linear_kto(x: Tensor, weight: Tensor, target: Tensor, desirable: Tensor, bias: Tensor | None = None,
                     kl: Tensor | None = None, ref_x: Tensor | None = None, ref_weight: Tensor | None = None,
                     ref_bias: Tensor | None = None, ref_logps: Tensor | None = None, beta: float = 0.1,
                     desirable_weight: float = 1.0, undesirable_weight: float = 1.0, average_log_prob: bool = False,
                     ignore_index: int = -100, metrics: bool = False):
    """Kahneman-Tversky optimisation of x [batch, len, hidden] with target [batch, len]; desirable [batch], 0 or not;
    kl: one number, or one a sequence. Reference and metrics as fused_linear_dpo."""
    if kl is not None and kl.dim() == 0:
        kl = kl.reshape(1)
    return _preference(_KTO, x, weight, target, bias, (ref_x, ref_weight, ref_bias, ref_logps),
                       desirable=desirable != 0, kl=kl, beta=beta, desirable_weight=desirable_weight,
                       undesirable_weight=undesirable_weight, average=average_log_prob, ignore_index=ignore_index, metrics=metrics)


@fake("fused_linear_preference")
def _(x, weight, bias, target, nll_target, desirable, kl, ref_x, ref_weight, ref_bias, ref_logps, kind, dpo,
      ignore_index, nll, average, scalars, *need):
    n = target.shape[0]
    results = x.new_empty((2 * n if kind == _KTO else n // 2 * 4 + 3,), dtype=_sums(x))
    return x.new_empty((), dtype=_sums(x)), results, *_layer_gradients(x, weight, bias, *need)


def _preference_context(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.options, need = inputs[11:17], inputs[17:]
    ctx.made = _Made(output[2:] if any(need) else None)
    ctx.save_for_backward(*inputs[:11])


def _preference_backward(ctx, upstream, *_):
    need = ctx.needs_input_grad[:3]
    if upstream is None:
        return (None,) * 20
    gradients = ctx.made.take(upstream)
    if gradients is None:
        gradients = _Made(_ops.fused_linear_preference(*ctx.saved_tensors, *ctx.options, *need)[2:]).take(upstream)
    return tuple(map(_or_none, gradients, need)) + (None,) * 17


autograd("fused_linear_preference", _preference_backward, _preference_context)


# ---- mixture of experts

@checked
def moe(x: Tensor, gate_up: Tensor, down: Tensor, indices: Tensor, weights: Tensor, layout: str = "halves") -> Tensor:
    """SwiGLU experts: x [..., hidden], gate_up [experts, 2 intermediate, hidden], down [experts, hidden, intermediate],
    indices and weights [tokens, k] of the experts that every token chose. layout of gate_up: "halves" or
    "interleaved"."""
    interleaved = one_of({"halves": False, "interleaved": True}, "moe", "layout", layout)
    x, gate_up, down = _autocast(x, gate_up, down)
    if _half(x):
        return moe(x.float(), gate_up.float(), down.float(), indices, weights, layout).half()
    gate_up, down = _in_type_of(x, "moe", gate_up=gate_up, down=down)
    return _ops.moe(x, gate_up, down, indices, weights, interleaved, any(_wanted(x, gate_up, down, weights)))[0]


@fake("moe")
def _(x, gate_up, down, indices, weights, interleaved, keep):
    return _made(x), _empty_or(x, (indices.numel(), 2 * down.shape[2]), keep)


@fake("moe_backward")
def _(dy, saved, x, gate_up, down, indices, weights, interleaved, need_dx, need_gate_up, need_down, need_weights):
    return (_empty_or(x, x.shape, need_dx), _empty_or(x, gate_up.shape, need_gate_up),
            _empty_or(x, down.shape, need_down), _empty_or(weights, weights.shape, need_weights))


def _moe_context(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.interleaved = inputs[5]
    ctx.save_for_backward(output[1], *inputs[:5])


def _moe_backward(ctx, dy, _):
    need_dx, need_gate_up, need_down, _, need_weights = ctx.needs_input_grad[:5]
    need = need_dx, need_gate_up, need_down, need_weights
    dx, dg, dd, dw = map(_or_none, _ops.moe_backward(dy, *ctx.saved_tensors, ctx.interleaved, *need), need)
    return dx, dg, dd, None, dw, None, None


autograd("moe", _moe_backward, _moe_context)
