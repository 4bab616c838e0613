"""Mixture of experts."""
from torch import Tensor

from ..arguments import checked, one_of
from ..registration import autograd, fake
from .common import _autocast, _empty_or, _half, _in_type_of, _made, _ops, _or_none, _wanted


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
