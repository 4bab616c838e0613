"""Gated activations."""
from torch import Tensor

from ..arguments import checked, one_of
from ..registration import autograd, fake
from .common import _empty_or, _made, _ops, _or_none, _unknown_half


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
