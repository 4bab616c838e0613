"""Rotations of queries and keys: which of transformers' functions tigon's rope equals, and the forward of an attention in
which it stands in their place. The rest of the attention stays transformers' own, whatever a family does in it."""
from __future__ import annotations

import functools

import torch

from .. import ops
from .equal import same
from .rebound import innermost, with_names


def _heads_first(ours):
    """The rotation of [batch, heads, seq, d], whose tables get the axis of the heads: 1, or 2 where q is [batch, seq,
    heads, d]. Tables without a batch get an axis 0."""

    def rotate(*tensors, axis=None):
        *heads, cos, sin = tensors
        if axis != 2:
            return ours(*heads, cos, sin)
        made = ours(*(t.transpose(1, 2) for t in heads), cos, sin)
        return tuple(t.transpose(1, 2) for t in made) if isinstance(made, tuple) else made.transpose(1, 2)

    return rotate


_pair = _heads_first(lambda q, k, cos, sin: ops.rope(q, k, cos, sin))
_halves = _heads_first(lambda q, k, cos, sin: ops.rope(q, k, torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)))
_single = _heads_first(lambda x, cos, sin: ops.rope(x, x[:, :0], cos, sin)[0])


def _of_patches(q, k, cos, sin, axis=None):
    """Of queries and keys [patches, heads, d] or [1, patches, heads, d] of images, by tables [patches, d]."""
    turned = [(t[None] if t.dim() == 3 else t).transpose(1, 2) for t in (q, k)]
    made = [t.transpose(1, 2) for t in ops.rope(*turned, cos, sin)]
    return tuple(t[0] if q.dim() == 3 else t for t in made)


# What stands in the place of a rotation of transformers, with the argument `unsqueeze_dim` of that as `axis`.
# "halves" has tables of the angles of pairs, each once.
ROTATIONS = {"pair": _pair, "halves": _halves, "single": _single, "patches": _of_patches}


def _trials(kind: str):
    """Calls of a rotation: tensors, its axis, and whether it may refuse them."""
    def heads(*shape):
        return torch.randn(*shape, device="cpu", dtype=torch.float32)

    def tables(*shape):
        angles = heads(*shape[:-1], shape[-1] // 2)
        return [f(angles) if kind == "halves" else torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin)]

    if kind == "patches":
        return [([heads(*batch, 5, 4, 16), heads(*batch, 5, 4, 16), *tables(5, 16)], None, False) for batch in ((), (1,))]
    q = [heads(2, 4, 5, 16)] if kind == "single" else [heads(2, 4, 5, 16), heads(2, 2, 5, 16)]
    turned = [t.transpose(1, 2) for t in q]
    return [([*q, *tables(2, 5, 16)], None, False), ([*q, *tables(2, 5, 8)], None, True),  # 8: a part of the columns
            ([*q, *tables(5, 16)], 0, True), ([*turned, *tables(2, 5, 16)], 2, True)]


def _refuses(function, tensors, axis) -> bool:
    try:
        function(*tensors, **axis)
        return False
    except Exception:
        return True


def _is_rotation(function, kind: str) -> bool:
    for tensors, axis, optional in _trials(kind):
        how = {} if axis is None else {"unsqueeze_dim": axis}
        equal = same(functools.partial(function, **how), functools.partial(ROTATIONS[kind], axis=axis), *tensors)
        if not equal and not (optional and _refuses(function, tensors, how)):
            return False
    return True


@functools.cache
def rotation(function) -> str | None:
    """Which of ROTATIONS a rotation of transformers is."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        torch.manual_seed(0)
        return next((kind for kind in ROTATIONS if _is_rotation(function, kind)), None)


def _rotated(kind: str, theirs):
    """A rotation by tigon where q, k and the tables are of one type, on the CPU, as `kind` of ROTATIONS has them."""
    ours, tensors = ROTATIONS[kind], 3 if kind == "single" else 4
    dims, table_dims = ((3, 4), (2,)) if kind == "patches" else ((4,), (2, 3))

    def rotate(*args, **kwargs):
        axis = kwargs.get("unsqueeze_dim", args[tensors] if len(args) > tensors else None)
        given = args[:tensors]
        fits = len(given) == tensors and len(args) + len(kwargs) == tensors + (axis is not None)
        fits = fits and given[0].dim() in dims and given[-1].dim() in table_dims
        if not fits or any(t.dtype != given[0].dtype or t.device.type != "cpu" for t in given):
            return theirs(*args, **kwargs)
        return ours(*given, axis=axis)

    return rotate


def rotations_of(cls: type) -> dict:
    """The rotations that the forward of a class calls, by their names in its module."""
    own = innermost(cls.forward)
    names = [name for name in own.__code__.co_names if "rotary" in name or name.endswith("_rope")]
    return {name: own.__globals__[name] for name in names if callable(own.__globals__.get(name))}


def rotary_attention_forward(cls: type):
    """The forward of the class, in which rotations are tigon's where they are the same."""
    own, theirs = cls.forward, rotations_of(cls)
    kinds = {name: rotation(function) for name, function in theirs.items()}
    ours = with_names(own, {n: _rotated(kind, theirs[n]) for n, kind in kinds.items() if kind is not None})

    @functools.wraps(own)
    def forward(self, *args, **kwargs):
        return (ours if cls.forward is own else cls.forward)(self, *args, **kwargs)  # unless somebody has replaced it since

    return forward
