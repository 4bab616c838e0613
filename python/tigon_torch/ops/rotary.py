"""Rotary position embedding."""
import torch
from torch import Tensor

from ..arguments import checked, one_of, refuse, whole
from ..registration import autograd, fake
from .common import _joint, _made, _ops, _unknown_half

_COLUMNS = {"first": False, "last": True}
_PAIRS = {"halves": False, "neighbours": True}


def _expect_order(op, q, cos):
    """Refuses [batch, seq, heads, d] by name: what is wrong with the tables of such a call does not say it."""
    if torch.compiler.is_compiling() or q.dim() != 4 or cos.dim() < 2:
        return
    tokens = cos.shape[-2]
    if q.shape[2] != tokens == q.shape[1]:
        refuse(op, "q", " x ".join(map(str, q.shape)),
               f"[batch, heads, seq, d] with the {tokens} tokens of cos; transpose(1, 2) makes it of [batch, seq, heads, d]")


@checked
def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rotary_dim: int | None = None, columns: str = "first",
         pairs: str = "halves") -> tuple[Tensor, Tensor]:
    """q and k [batch, heads, seq, d] with the pairs of r columns rotated, their first or their "last" ones; the other
    columns stay. pairs: "halves" (j, j + r/2), as Llama and most others have it, or "neighbours" (2j, 2j + 1): GLM,
    Cohere, DeepSeek.

    cos and sin [1 or batch, seq, r] or [seq, r], as transformers makes them: their second half repeats the first and is
    not read. r is their width, or rotary_dim: then r/2 columns are enough. Tables get no gradients.
    """
    last = one_of(_COLUMNS, "rope", "columns", columns)
    neighbours = one_of(_PAIRS, "rope", "pairs", pairs)
    r = -1 if rotary_dim is None else whole("rope", "rotary_dim", rotary_dim, 0)
    _expect_order("rope", q, cos)
    q, k = _joint(q, k)
    if _unknown_half(q):
        q, k = rope(q.float(), k.float(), cos, sin, rotary_dim, columns, pairs)
        return q.half(), k.half()
    return _ops.rope(q, k, cos, sin, r, last, neighbours, False)


@checked
def mrope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, section) -> tuple[Tensor, Tensor]:
    """The same with angles of time, height and width: cos and sin [3, batch, seq, d], section three numbers of pairs
    whose sum is d/2."""
    if not isinstance(section, (list, tuple)):
        refuse("mrope", "section", section, "three numbers")
    _expect_order("mrope", q, cos)
    q, k = _joint(q, k)
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
