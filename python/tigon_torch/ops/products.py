"""Attention and linear layers."""
import torch
import torch.nn.functional as F
from torch import Tensor

from ..arguments import above_zero, checked, refuse, whole
from ..registration import autograd, fake
from .common import _autocast, _empty_or, _in_type_of, _ops, _or_none, _sums, _unknown_half


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
              q_offset: int | None = None, key_begins: Tensor | None = None,
              key_ends: Tensor | None = None) -> Tensor:
    """Softmax attention of q [batch, heads, queries, d] over k [batch, kv_heads, keys, d] and v [batch, kv_heads, keys,
    e], any strides. The width e of the values, and of the result, may be another than d.

    scale None is 1 / sqrt(d). window: as many keys as a query sees, its own among them, or (left, right) keys beside
    it, None for all. softcap, above 0: scores become softcap * tanh(score / softcap). sinks [heads]: a logit of every
    head beside its scores. cu_seqlens: 0 and the ends of packed documents, the same for every batch entry. q_offset:
    position of the first query among the keys; None is keys - queries with causal, as a cache before them needs.
    key_begins, key_ends [batch]: of a padded batch the first key of each entry that is no padding, and the one behind
    the last; a query that sees no key has a result of 0. The result lies in memory as [batch, queries, heads, e].
    """
    q, k, v = _autocast(q, k, v)
    if _unknown_half(q):
        return attention(q.float(), k.float(), v.float(), scale, causal, window, softcap, sinks, cu_seqlens,
                         q_offset, key_begins, key_ends).half()
    left, right = _window(window)
    if q_offset is None:
        q_offset = k.shape[2] - q.shape[2] if causal and q.dim() == k.dim() == 4 else 0
        if q_offset < 0:
            refuse("attention", "k", f"of {k.shape[2]} keys", f"at least {q.shape[2]}, one a query, or a q_offset")
    if scale == 0:
        q = q * 0.0  # tigon's scale of 0 stands for 1 / sqrt(d)
    return _ops.attention(q, k, v, sinks, cu_seqlens, key_begins, key_ends, 0.0 if scale is None else scale, causal,
                          left, right, above_zero("attention", "softcap", softcap), q_offset)[0]


def _token_major(t, columns_of=None):
    b, h, s, d = t.shape
    return t.new_empty((b, s, h, d if columns_of is None else columns_of.shape[3])).transpose(1, 2)


@fake("attention")
def _(q, k, v, sinks, cu_seqlens, key_begins, key_ends, scale, causal, left, right, softcap, offset):
    return _token_major(q, v), q.new_empty(q.shape[:3], dtype=_sums(q))


@fake("attention_backward")
def _(d_o, q, k, v, o, lse, sinks, cu_seqlens, key_begins, key_ends, scale, causal, left, right, softcap, offset,
      *need):
    wanted = need[3] and sinks is not None
    dsinks = q.new_empty((sinks.numel() if wanted else 0,), dtype=torch.float32 if sinks is None else sinks.dtype)
    made = [_token_major(t) if n else t.new_empty((0,)) for t, n in zip((q, k, v), need)]
    return *made, dsinks


def _attention_context(ctx, inputs, output):
    ctx.options = inputs[7:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:7])


def _attention_backward(ctx, d_o, _):
    need = ctx.needs_input_grad[:4]
    gradients = _ops.attention_backward(d_o, *ctx.saved_tensors, *ctx.options, *need)
    return tuple(map(_or_none, gradients, need)) + (None,) * (3 + len(ctx.options))


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
