"""Cross entropy of logits, and of a linear layer's output."""
from torch import Tensor

from ..arguments import above_zero, checked, one_of
from ..registration import autograd, fake
from .common import (
    _Made, _REDUCTION, _autocast, _in_type_of, _layer_gradients, _loss_like, _made, _ops, _or_none, _unknown_half,
    _wanted)
from .products import linear


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


fake("cross_entropy", lambda logits, target, *options: _loss_like(logits, target, options[-1]))
fake("cross_entropy_backward", lambda upstream, logits, *_: _made(logits))


def _cross_entropy_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.options = inputs[2:]


def _cross_entropy_backward(ctx, upstream):
    return (_ops.cross_entropy_backward(upstream, *ctx.saved_tensors, *ctx.options),) + (None,) * 6


autograd("cross_entropy", _cross_entropy_backward, _cross_entropy_context)


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
