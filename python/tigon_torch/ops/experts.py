"""Mixture of experts and its router."""
import math

import torch
from torch import Tensor

from ..arguments import checked, expect_dims, expect_shape, one_of, refuse, whole
from ..declared import kept, like, operator, sums
from ..ranks import of_group
from .common import _autocast, _in_type_of, _ops, _wanted

_TENSORS = ("Tensor x, Tensor gate_up, Tensor down, Tensor? gate_up_bias, Tensor? down_bias, Tensor indices,"
            " Tensor weights")
_KEPT = "x gate_up down gate_up_bias down_bias indices weights"
_TRAINED = "x gate_up down gate_up_bias down_bias weights"
_LAYOUTS = {"halves": False, "interleaved": True}
_SCORES = {"softmax": 0, "sigmoid": 1, "sqrt_softplus": 2}
_GROUP_SCORES = {"two_largest": False, "largest": True}

operator(f"moe({_TENSORS}, int experts, bool interleaved, bool keep, float limit, float slope, float up_offset)"
         " -> y saved",
         lambda x, gate_up, down, gate_up_bias, down_bias, indices, weights, experts, interleaved, keep, *_: (
             like(x), kept(x, indices.numel(), gate_up.shape[1]) if keep else None),
         keeps=_KEPT + " saved", gradients=_TRAINED)
operator(f"expert_parallel_moe({_TENSORS}, int group, int rank, int ranks, int experts, bool interleaved, float limit,"
         " float slope, float up_offset) -> y", lambda x, *_: like(x), keeps=_KEPT, gradients=_TRAINED)
operator("moe_router(Tensor logits, Tensor? bias, int k, int score, bool normalise, float scale, int groups,"
         " int kept_groups, bool largest) -> indices weights",
         lambda logits, bias, k, *_: (logits.new_empty((*logits.shape[:-1], k), dtype=torch.int64),
                                      sums(logits, *logits.shape[:-1], k)),
         keeps="logits indices", gradients="logits", upstream="weights")


def _arguments(op, x, gate_up, down, gate_up_bias, down_bias, indices, weights):
    """Those of both operators, in the type of x."""
    x, gate_up, down = _autocast(x, gate_up, down)
    gate_up, down, gate_up_bias, down_bias = _in_type_of(x, op, gate_up=gate_up, down=down, gate_up_bias=gate_up_bias,
                                                         down_bias=down_bias)
    expect_dims(op, "gate_up", gate_up, 3)
    expect_dims(op, "down", down, 3)
    experts, hidden, intermediate = down.shape
    expect_shape(op, "gate_up", gate_up, (experts, 2 * intermediate, hidden), ", by down")
    expect_shape(op, "gate_up_bias", gate_up_bias, (experts, 2 * intermediate))
    expect_shape(op, "down_bias", down_bias, (experts, hidden))
    expect_shape(op, "weights", weights, indices.shape, ", as indices")
    return x, gate_up, down, gate_up_bias, down_bias, indices, weights


@checked
def moe(x: Tensor, gate_up: Tensor, down: Tensor, indices: Tensor, weights: Tensor, layout: str = "halves",
        gate_up_bias: Tensor | None = None, down_bias: Tensor | None = None, limit: float | None = None,
        slope: float = 1.0, up_offset: float = 0.0) -> Tensor:
    """SwiGLU experts: x [..., hidden], gate_up [experts, 2 intermediate, hidden], down [experts, hidden, intermediate],
    indices and weights [tokens, k] of the experts that every token chose. layout of gate_up: "halves" or "interleaved".

    gate_up_bias [experts, 2 intermediate], in the order of gate_up, and down_bias [experts, hidden]. limit, slope and
    up_offset are those of swiglu.
    """
    interleaved = one_of(_LAYOUTS, "moe", "layout", layout)
    tensors = _arguments("moe", x, gate_up, down, gate_up_bias, down_bias, indices, weights)
    return _ops.moe(*tensors, down.shape[0], interleaved, any(_wanted(*tensors)), math.inf if limit is None else limit,
                    slope, up_offset)[0]


@checked
def expert_parallel_moe(x: Tensor, gate_up: Tensor, down: Tensor, indices: Tensor, weights: Tensor, group=None,
                        layout: str = "halves", gate_up_bias: Tensor | None = None, down_bias: Tensor | None = None,
                        limit: float | None = None, slope: float = 1.0, up_offset: float = 0.0) -> Tensor:
    """moe where every rank of a process group of torch.distributed has as many tokens and experts of its own: gate_up
    and down are those of rank * experts and the next ones, indices those of all ranks' experts. All ranks call forward
    and backward together; gradients of experts are sums over the tokens of all ranks. group=None: one rank."""
    interleaved = one_of(_LAYOUTS, "expert_parallel_moe", "layout", layout)
    tensors = _arguments("expert_parallel_moe", x, gate_up, down, gate_up_bias, down_bias, indices, weights)
    return _ops.expert_parallel_moe(*tensors, *of_group(group), down.shape[0], interleaved,
                                    math.inf if limit is None else limit, slope, up_offset)


@checked
def moe_router(logits: Tensor, k: int, bias: Tensor | None = None, score: str = "softmax", normalise: bool = True,
               scale: float = 1.0, groups: int = 1, kept_groups: int = 1,
               group_score: str = "two_largest") -> tuple[Tensor, Tensor]:
    """The k experts with the largest scores + bias of every token of logits [..., experts]: their indices [..., k], the
    largest first and equal ones by index, and their weights, in f32 (f64 for f64): scale * the scores, without the
    bias, over their sum if they are normalised. score: "softmax", "sigmoid" or "sqrt_softplus". The bias [experts] gets
    no gradient.

    With groups, equal ones of experts beside each other, those of the kept_groups groups alone are chosen whose
    group_score is highest: the sum of the "two_largest" scores + bias, as DeepSeek-V3 and GLM-4.5 have it, or the
    "largest" one, as DeepSeek-V2 has it.
    """
    op = "moe_router"
    kind, largest = one_of(_SCORES, op, "score", score), one_of(_GROUP_SCORES, op, "group_score", group_score)
    if logits.dim() == 0:
        refuse(op, "logits", "a number", "at least one dimension")
    experts = logits.shape[-1]
    expect_shape(op, "bias", bias, (experts,), ", as logits has experts")
    whole(op, "groups", groups, 1)
    whole(op, "kept_groups", kept_groups, 1)
    whole(op, "k", k, 1)
    if experts % groups != 0:
        refuse(op, "groups", groups, f"a divisor of the number of experts, {experts}")
    if kept_groups > groups:
        refuse(op, "kept_groups", kept_groups, f"at most groups, {groups}")
    most = kept_groups * (experts // groups)
    if k > most:
        refuse(op, "k", k, f"at most {most}, the experts that can be chosen")
    return _ops.moe_router(logits, bias, k, kind, normalise, scale, groups, kept_groups, largest)
