"""Norms of rows."""
from torch import Tensor

from ..arguments import checked, one_of
from ..registration import autograd, fake
from .common import (
    _CASTING, _gradient, _made, _of_no_columns, _ops, _or_none, _rows, _sums, _unknown_half, _without_columns)


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
