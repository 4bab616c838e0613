"""Norms of rows."""
from torch import Tensor

from ..arguments import checked, one_of, refuse, whole
from ..declared import like, operator, sums
from ..dtensors import by_rows
from ..registration import autograd, fake
from .common import (
    _CASTING, _gradient, _joint, _made, _of_no_columns, _ops, _or_none, _rows, _sums, _unknown_half, _without_columns)


@by_rows("x")
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


@by_rows("x", "residual")
@checked
def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6,
                       offset: float = 0.0, casting: str = "llama") -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) of s = x + residual, rounded to their type, in one pass."""
    cast = one_of(_CASTING, "fused_add_rms_norm", "casting", casting)
    x, residual = _joint(x, residual)
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


@by_rows("x")
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


operator("group_norm(Tensor x, Tensor? w, Tensor? b, int groups, int channels, float eps) -> y mean rstd",
         lambda x, w, b, groups, channels, eps: (
             like(x), *(sums(x, x.shape[0] * groups) for _ in range(2))), keeps="x w mean rstd", gradients="x! w b")
operator("poly_norm(Tensor x, Tensor w, Tensor b, float eps) -> y rstd",
         lambda x, w, b, eps: (like(x), sums(x, 3 * _rows(x))), keeps="x w rstd", gradients="x! w b")
operator("modulated_rms_norm(Tensor x, Tensor? w, Tensor scale, Tensor? shift, float eps, float offset, int casting)"
         " -> y rstd", lambda x, *_: (like(x), sums(x, _rows(x))), keeps="x w scale rstd",
         gradients="x! w scale! shift")
operator("dyt(Tensor x, Tensor alpha, Tensor gamma, Tensor? beta) -> y", lambda x, *_: like(x),
         keeps="x alpha gamma", gradients="x! alpha gamma beta")


@checked
def group_norm(x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """(x - mean) * rsqrt(var + eps) * weight + bias of x [batch, channels, ...], mean and variance over the channels of
    a group and all that follows; arguments as torch.nn.functional.group_norm."""
    if x.dim() < 2:
        refuse("group_norm", "x", f"of {x.dim()} dimensions", "at least 2, batch and channels")
    whole("group_norm", "num_groups", num_groups, 1)
    batch, channels = x.shape[:2]
    # Rows of one number are side by side, so that the bits do not depend on strides.
    planes = x.reshape(batch, channels, -1) if x.dim() > 2 else x.contiguous().unsqueeze(-1)
    return _ops.group_norm(planes, weight, bias, num_groups, channels, eps)[0].view(x.shape)


@by_rows("x")
@checked
def poly_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """weight[0] norm(x^3) + weight[1] norm(x^2) + weight[2] norm(x) + bias over the last axis, norm(u) = u *
    rsqrt(mean(u^2) + eps); weight [3], bias one number."""
    return _ops.poly_norm(x, weight, bias, eps)[0]


@checked
def modulated_rms_norm(x: Tensor, weight: Tensor | None, scale: Tensor, shift: Tensor | None = None, eps: float = 1e-6,
                       offset: float = 0.0, casting: str = "llama") -> Tensor:
    """rms_norm(x, weight, eps, offset, casting) * (1 + scale) + shift, in one pass, as in diffusion transformers.

    x [..., cols]; scale and shift [cols], [groups, cols] or [groups, 1, cols], each row of them for as many rows of x
    in succession: a sequence, where x is [groups, seq, cols]; or of the shape of x.
    """
    cast = one_of(_CASTING, "modulated_rms_norm", "casting", casting)
    for name, t in (("scale", scale), ("shift", shift)):
        if t is not None and t.shape != x.shape and (
                t.shape[-1:] != x.shape[-1:] or t.dim() > 3 or t.dim() == 3 and t.shape[1] != 1):
            refuse("modulated_rms_norm", name, f"of {tuple(t.shape)}", "groups x cols with the columns of x, or x's")
    groups = _rows(scale)
    if shift is not None and _rows(shift) != groups:
        refuse("modulated_rms_norm", "shift", f"of {_rows(shift)} rows", f"{groups}, as scale")
    if groups == 0 or _rows(x) % groups != 0:
        refuse("modulated_rms_norm", "scale", f"of {groups} rows", f"a divisor of the {_rows(x)} rows of x")
    return _ops.modulated_rms_norm(x, weight, scale, shift, eps, offset, cast)[0]


@by_rows("x")
@checked
def dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None = None) -> Tensor:
    """gamma * tanh(alpha * x) + beta over the last axis, dynamic tanh; alpha one number, gamma and beta [cols]."""
    return _ops.dyt(x, alpha, gamma, beta)
