"""Gated activations."""
import math

from torch import Tensor

from ..declared import without_gradient
from ..arguments import checked, one_of
from ..dtensors import by_rows
from ..registration import autograd, fake
from .common import _empty_or, _joint, _made, _ops, _or_none, _unknown_half


@by_rows("gate", "up", columns=True)
@checked
def swiglu(gate: Tensor, up: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0,
           limit: float | None = None, slope: float = 1.0, up_offset: float = 0.0) -> Tensor:
    """down_multiplier * g * sigmoid(slope * g) * (u + up_offset), g = gate_multiplier * gate, at most limit, u = up
    between -limit and limit: silu(gate) * up without options. Falcon-H1 has multipliers; gpt-oss limit 7, slope 1.702
    and up_offset 1. The halves of one buffer are used where they lie.
    """
    bound = math.inf if limit is None else limit
    gate, up = _joint(gate, up)
    if _unknown_half(gate):
        return swiglu(gate.float(), up.float(), gate_multiplier, down_multiplier, limit, slope, up_offset).half()
    return _ops.swiglu(gate, up, gate_multiplier, down_multiplier, bound, slope, up_offset)


@by_rows("gate", "up", columns=True)
@checked
def geglu(gate: Tensor, up: Tensor, approximate: str = "tanh") -> Tensor:
    """gelu(gate) * up; approximate is "tanh" or "none", as in torch.nn.functional.gelu."""
    tanh = one_of({"tanh": True, "none": False}, "geglu", "approximate", approximate)
    gate, up = _joint(gate, up)
    if _unknown_half(gate):
        return geglu(gate.float(), up.float(), approximate).half()
    return _ops.geglu(gate, up, tanh)


fake("swiglu", lambda gate, *_: _made(gate))
fake("swiglu_backward", lambda dy, gate, *rest: tuple(_empty_or(gate, gate.shape, n) for n in rest[-2:]))
fake("geglu", lambda gate, up, tanh: _made(gate))
fake("geglu_backward",
     lambda dy, gate, up, tanh, *need: tuple(_empty_or(gate, gate.shape, n) for n in need))


# The gradients, and the output again, in one pass. Called where autograd runs a gate and the layer behind it as one.
for _name, _numbers in (("swiglu", "float gate_multiplier, float down_multiplier, float limit, float slope, float up_offset"),
                        ("geglu", "bool tanh")):
    without_gradient(
        f"{_name}_backward_with_output(Tensor dy, Tensor gate, Tensor up, {_numbers}) -> y dgate dup",
        lambda dy, gate, *_: [gate.new_empty(gate.shape) for _ in range(3)])


def _gate_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.form = inputs[2:]


def _gate_backward(op, ctx, dy):
    need = ctx.needs_input_grad[:2]
    gradients = op(dy, *ctx.saved_tensors, *ctx.form, *need)
    return tuple(map(_or_none, gradients, need)) + (None,) * len(ctx.form)


autograd("swiglu", lambda ctx, dy: _gate_backward(_ops.swiglu_backward, ctx, dy), _gate_context)
autograd("geglu", lambda ctx, dy: _gate_backward(_ops.geglu_backward, ctx, dy), _gate_context)
