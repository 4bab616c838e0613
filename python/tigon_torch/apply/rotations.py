"""Rotations of queries and keys: which of transformers' functions tigon's rope equals, and the forward of an attention
in which it stands in their place. The rest of the attention stays transformers' own, whatever a family does in it."""
from __future__ import annotations

import dataclasses
import functools
import typing

import torch

from .. import ops
from ..devices import autocast_type, runs
from .equal import same
from .rebound import innermost, with_names


def _rope(*tensors, **how):
    """ops.rope of one or two tensors."""
    *heads, cos, sin = tensors
    if len(heads) == 2:
        return ops.rope(*heads, cos, sin, **how)
    return ops.rope(heads[0], heads[0][:, :0], cos, sin, **how)[0]


def _once(table):
    """How many columns tables rotate that have the angle of each pair once."""
    return 2 * table.shape[-1]


def _joined(table, section):
    """The angles of each pair, once, of tables by time, height and width: a section of the pairs of each."""
    parts = table[..., : table.shape[-1] // 2].split(list(section), dim=-1)
    return torch.cat([part[i] for i, part in enumerate(parts)], -1)


def _turned(tensors, axes):
    return tuple(t.transpose(*axes) for t in tensors) if isinstance(tensors, tuple) else tensors.transpose(*axes)


@dataclasses.dataclass(frozen=True)
class Rotation:
    """A form that rotations of transformers have: `heads` tensors (query and key, or one of them) and tables."""

    ours: typing.Callable  # of tensors [batch, heads, seq, d] and the tables
    tables: typing.Callable  # of the angles of pairs, as transformers makes them
    heads: int = 2
    where: int = 1  # the axis of heads in the tensors, before an argument unsqueeze_dim says otherwise
    patches: bool = False  # tensors [patches, heads, d] of images, or one image of them, and tables [patches, d]
    sections: bool = False  # tables [3, batch, seq, d] and behind them the pairs of each, as before transformers 5

    @property
    def arguments(self) -> int:
        return self.heads + (1 if self.tables is _polar else 2) + self.sections

    def __call__(self, *tensors, axis=None):
        heads, tables = tensors[: self.heads], tensors[self.heads :]
        if self.sections:
            *tables, section = tables
            tables = [_joined(table, section) for table in tables]
        if self.patches:
            made = self.ours(*((t[None] if t.dim() == 3 else t).transpose(1, 2) for t in heads), *tables)
            return tuple(t.transpose(1, 2)[0] if heads[0].dim() == 3 else t.transpose(1, 2) for t in made)
        if (self.where if axis is None else axis) != 2:
            return self.ours(*heads, *tables)
        return _turned(self.ours(*_turned(heads, (1, 2)), *tables), (1, 2))

    def fits(self, tensors) -> bool:
        """Whether tigon rotates these: all of one type, where tigon's rope runs."""
        if self.sections:
            *tensors, section = tensors
            if len(section) != 3 or 2 * sum(section) != tensors[-1].shape[-1]:
                return False
        q, table = tensors[0], tensors[-1]
        if not all(runs("rope", t) for t in tensors) or any(t.dtype != q.dtype for t in tensors[: self.heads]):
            return False
        dims = ((3, 4), (2,)) if self.patches else ((4,), (4,) if self.sections else (2, 3))
        return _fit(table, q) and q.dim() in dims[0] and table.dim() in dims[1]


_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def _fit(table, q) -> bool:
    """Whether the table has the type of what it rotates. Under autocast it may be f32 beside products in autocast's type,
    in which the rotation then is: it is rounded once here, and by the attention there."""
    wide = torch.float32 if q.dtype == autocast_type(q) else q.dtype
    return table.dtype in (q.dtype, wide, _COMPLEX.get(wide))


_NEIGHBOURS = dict(pairs="neighbours")


def _twice(angles):
    return tuple(torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))


def _each(angles):
    return tuple(f(angles) for f in (torch.cos, torch.sin))


def _polar(angles):
    return (torch.polar(torch.ones_like(angles), angles),)


def _halves_once(q, k, c, s):
    return _rope(q, k, c, s, rotary_dim=_once(c))


def _neighbours_once(q, k, c, s):
    return _rope(q, k, c, s, rotary_dim=_once(c), **_NEIGHBOURS)


def _of_complex(q, k, table):
    return _rope(q, k, table.real, table.imag, rotary_dim=_once(table), **_NEIGHBOURS)


ROTATIONS = {
    "halves": Rotation(_rope, _twice),
    "halves, angles once": Rotation(_halves_once, _each),
    "halves, in sections": Rotation(_halves_once, _twice, sections=True),
    "neighbours": Rotation(lambda q, k, c, s: _rope(q, k, c, s, **_NEIGHBOURS), _twice),
    "neighbours, in sections": Rotation(_neighbours_once, _twice, sections=True),
    "neighbours, angles beside each other": Rotation(
        lambda q, k, c, s: _rope(q, k, c[..., ::2], s[..., ::2], rotary_dim=c.shape[-1], **_NEIGHBOURS),
        lambda angles: tuple(table.repeat_interleave(2, -1) for table in _each(angles))),
    "complex": Rotation(_of_complex, _polar),
    "complex, heads last": Rotation(_of_complex, _polar, where=2),
    "halves of one": Rotation(_rope, _twice, heads=1),
    "neighbours of one, last columns": Rotation(
        lambda x, c, s: _rope(x, c, s, rotary_dim=_once(c), columns="last", **_NEIGHBOURS), _each, heads=1),
    "patches": Rotation(_rope, _twice, patches=True),
}


def _trials(form: Rotation):
    """Calls of a rotation: tensors, what is behind them, unsqueeze_dim, and whether it may refuse them."""
    def heads(*shapes):
        return [torch.randn(*shape, device="cpu", dtype=torch.float32) for shape in shapes[: form.heads]]

    def tables(*shape):
        return form.tables(torch.randn(*shape[:-1], shape[-1] // 2, device="cpu", dtype=torch.float32))

    if form.patches:
        return [([*heads((*b, 5, 4, 16), (*b, 5, 4, 16)), *tables(5, 16)], (), None, False) for b in ((), (1,))]
    q = heads((2, 4, 5, 16), (2, 2, 5, 16))
    turned = [t.transpose(1, 2) for t in q]
    if form.sections:
        return [([*q, *tables(3, 2, 5, 16)], ([1, 4, 3],), None, False),
                ([*q, *tables(3, 2, 5, 8)], ([1, 1, 2],), None, True),  # of 8 columns
                ([*turned, *tables(3, 2, 5, 16)], ([1, 4, 3],), 2, True)]
    usual = q if form.where == 1 else turned
    return [([*usual, *tables(2, 5, 16)], (), None, False),
            ([*usual, *tables(2, 5, 8)], (), None, True),  # of 8 columns
            ([*q, *tables(5, 16)], (), 0, True), ([*turned, *tables(2, 5, 16)], (), 2, True)]


def _refuses(function, tensors) -> bool:
    try:
        function(*tensors)
        return False
    except Exception:
        return True


def _is_rotation(function, form: Rotation) -> bool:
    dtypes = (torch.float32, torch.bfloat16) if form.tables is not _polar else (torch.float32,)
    for tensors, behind, axis, optional in _trials(form):
        def theirs(*given, behind=behind, how={} if axis is None else {"unsqueeze_dim": axis}):
            return function(*given, *behind, **how)

        def ours(*given, behind=behind, axis=axis):
            return form(*given, *behind, axis=axis)

        if not same(theirs, ours, *tensors, dtypes=dtypes) and not (optional and _refuses(theirs, tensors)):
            return False
    return True


@functools.cache
def rotation(function) -> str | None:
    """Which of ROTATIONS a rotation of transformers is."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        torch.manual_seed(0)
        return next((kind for kind, form in ROTATIONS.items() if _is_rotation(function, form)), None)


def _rotated(kind: str, theirs):
    """The rotation by tigon where it can be, and by transformers' function."""
    form, count = ROTATIONS[kind], ROTATIONS[kind].arguments

    def rotate(*args, **kwargs):
        axis = kwargs.get("unsqueeze_dim", args[count] if len(args) > count else None)
        given = args[:count]
        if len(given) != count or len(args) + len(kwargs) != count + (axis is not None) or not form.fits(given):
            return theirs(*args, **kwargs)
        return form(*given, axis=axis)

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
        # Somebody may have replaced the forward of the class since.
        return (ours if cls.forward is own else cls.forward)(self, *args, **kwargs)

    return forward
