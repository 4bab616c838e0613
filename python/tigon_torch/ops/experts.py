"""Mixture of experts."""
import math

from torch import Tensor

from ..arguments import checked, expect_dims, expect_shape, one_of
from ..declared import like, operator
from .common import _autocast, _in_type_of, _ops, _wanted

operator("moe(Tensor x, Tensor gate_up, Tensor down, Tensor? gate_up_bias, Tensor? down_bias, Tensor indices,"
         " Tensor weights, int experts, bool interleaved, bool keep, float limit, float slope, float up_offset)"
         " -> y saved",
         lambda x, gate_up, down, gate_up_bias, down_bias, indices, weights, experts, interleaved, keep, *_: (
             like(x), x.new_empty((indices.numel(), gate_up.shape[1])) if keep else None),
         keeps="x gate_up down gate_up_bias down_bias indices weights saved",
         gradients="x gate_up down gate_up_bias down_bias weights")


@checked
def moe(x: Tensor, gate_up: Tensor, down: Tensor, indices: Tensor, weights: Tensor, layout: str = "halves",
        gate_up_bias: Tensor | None = None, down_bias: Tensor | None = None, limit: float | None = None,
        slope: float = 1.0, up_offset: float = 0.0) -> Tensor:
    """SwiGLU experts: x [..., hidden], gate_up [experts, 2 intermediate, hidden], down [experts, hidden, intermediate],
    indices and weights [tokens, k] of the experts that every token chose. layout of gate_up: "halves" or "interleaved".

    gate_up_bias [experts, 2 intermediate], in the order of gate_up, and down_bias [experts, hidden]. limit, slope and
    up_offset are those of swiglu.
    """
    interleaved = one_of({"halves": False, "interleaved": True}, "moe", "layout", layout)
    x, gate_up, down = _autocast(x, gate_up, down)
    gate_up, down, gate_up_bias, down_bias = _in_type_of(x, "moe", gate_up=gate_up, down=down,
                                                         gate_up_bias=gate_up_bias, down_bias=down_bias)
    expect_dims("moe", "gate_up", gate_up, 3)
    expect_dims("moe", "down", down, 3)
    experts, hidden, intermediate = down.shape
    expect_shape("moe", "gate_up", gate_up, (experts, 2 * intermediate, hidden), ", by down")
    expect_shape("moe", "gate_up_bias", gate_up_bias, (experts, 2 * intermediate))
    expect_shape("moe", "down_bias", down_bias, (experts, hidden))
    expect_shape("moe", "weights", weights, indices.shape, ", as indices")
    keep = any(_wanted(x, gate_up, down, gate_up_bias, down_bias, weights))
    return _ops.moe(x, gate_up, down, gate_up_bias, down_bias, indices, weights, experts, interleaved, keep,
                    math.inf if limit is None else limit, slope, up_offset)[0]
