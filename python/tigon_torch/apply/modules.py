"""Forwards of single modules: norms, MLPs, experts, decoder layers, linear layers.

Each name ending in _forward makes a function of the module that it becomes a method of (patch.Forward). That hands the
call to the class's own forward wherever its operator would not give what that gives.
"""
from __future__ import annotations

import functools
import weakref

import torch
import torch.nn.functional as F

from .. import ops
from ..devices import autocast_type, runs
from . import products
from .measure import is_faster
from .patch import Forward
from .recompute import instead_of
from .sharded import has_hooks, is_sharded, refuse_partitioned


def _norm_fits(op: str, norm, x: torch.Tensor) -> bool:
    # Llama's norm of another type than its weight's returns the wider of the two.
    weight = getattr(norm, "weight", None)
    return runs(op, x) and (weight is None or x.dtype == weight.dtype)


def _is_narrow(norm, x: torch.Tensor) -> bool:
    """Whether x is in autocast's type, behind a product, and the norm's weight in f32."""
    return x.dtype == autocast_type(x) != torch.float32 and norm.weight.dtype == torch.float32


NEXT = "_tigon_next"  # the attribute of a layer that has what follows it


class Next:
    """What follows a layer: the norm that its result goes into, the module that calls the norm, and the facts of the norm.
    A copy of the layer has none: if layers held one another, a copy of one would be a copy of all, one inside the other."""

    def __init__(self, layer=None, norm=None, caller=None, facts=None):
        self.modules = [weakref.ref(module) for module in (layer, norm, caller) if module is not None]
        self.facts = facts

    def of(self, layer):
        """(norm, caller), or nothing where this is that of another layer."""
        own, *behind = [module() for module in self.modules] or [None]
        return behind if own is layer and None not in behind else ()

    def __deepcopy__(self, memo):
        return Next()

    def __reduce__(self):
        return Next, ()


# That of the result: the norm, the version of the result, and what the norm makes of it.
_NORMED = "_tigon_normed"


def _ready(norm, x):
    """What this norm makes of x, if it came with x."""
    if torch.compiler.is_compiling() or not products.on_gpu(x):
        return None
    of, version, normed = vars(x).pop(_NORMED, (None, None, None))
    return normed if of is norm and version == x._version else None


def _is_there(norm, caller, x) -> bool:
    """Whether a norm can be computed before its module is called: nobody gathers its weight for that, moves it, or looks at
    what it is given."""
    own, weight = vars(norm).get("forward"), getattr(norm, "weight", None)
    if not isinstance(own, Forward) or own.make is not rms_norm_forward or has_hooks(norm):
        return False
    if is_sharded(norm) or is_sharded(caller):
        return False
    fits = weight is not None and weight.device == x.device and weight.numel() == x.shape[-1]
    return weight is None or fits and products.is_whole(weight)


def _add_for_next(self, x, residual):
    """x + residual. On a GPU the norm that follows is made by the same operator, and waits for its module at the sum.
    Not with gradient checkpointing, which keeps the sum alone."""
    following = vars(self).get(NEXT)
    behind = following.of(self) if following is not None and not torch.compiler.is_compiling() else ()
    if not behind or getattr(self, "gradient_checkpointing", False) or not products.on_gpu(x):
        return residual + x
    norm, caller = behind
    if type(residual) is not torch.Tensor or not _is_there(norm, caller, x):
        return residual + x
    normed, total = add_and_norm(x, residual, norm, following.facts)
    setattr(total, _NORMED, (norm, total._version, normed))
    return total


def rms_norm_forward(eps: float, offset: float, casting: str, widens: bool | None):
    """`widens`: equal.widens."""

    def forward(self, hidden_states):
        x = hidden_states
        ready = _ready(self, x)
        if ready is not None:
            return ready
        if not _norm_fits("rms_norm", self, x):
            if widens is None or not runs("rms_norm", x) or not _is_narrow(self, x):
                return type(self).forward(self, x)
            x = x.to(torch.float32) if widens else x
        return ops.rms_norm(x, getattr(self, "weight", None), eps, offset, casting)

    return forward


def layer_norm_forward(offset: float):
    def forward(self, input):
        if autocast_type(input) is not None and input.is_cuda:
            input = input.to(torch.float32)  # autocast has LayerNorm in f32 there
        if not _norm_fits("layer_norm", self, input) and not _is_narrow(self, input):
            return type(self).forward(self, input)
        return ops.layer_norm(input, self.weight + offset if offset else self.weight, self.bias, self.eps)

    return forward


def _made_by(norm, x, recompute: bool, facts, result):
    """The context in which the norm of x is not kept, if the norm is tigon's, with these facts."""
    tigons = recompute and facts is not None and norm.__dict__.get("forward") is not None and _norm_fits("rms_norm", norm, x)
    tigons = tigons and autocast_type(x) in (None, x.dtype)  # of another one products keep a copy in autocast's
    return instead_of(tigons, result, lambda x, weight: ops.rms_norm(x, weight, *facts), x, norm.weight)


def add_and_norm(x, residual, norm, facts):
    """(norm(x + residual), x + residual). Under autocast the residual may be f32 beside x in autocast's type."""
    hooked = norm._forward_hooks or norm._forward_pre_hooks
    wider = x if x.dtype == residual.dtype or autocast_type(x) is None else residual
    if not _norm_fits("fused_add_rms_norm", norm, wider) or residual.dtype != wider.dtype or hooked:
        total = residual + x
        return norm(total), total
    return ops.fused_add_rms_norm(x, residual, norm.weight, *facts)


def _checkpointing(forward):
    """With gradient checkpointing, if it is on: transformers wraps the forward of the class, which this one replaces."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    if "__call__" in vars(GradientCheckpointingLayer):  # transformers that checkpoint around forward
        return forward

    @functools.wraps(forward)
    def checkpointed(self, *args, **kwargs):
        if not (getattr(self, "gradient_checkpointing", False) and self.training and torch.is_grad_enabled()):
            return forward(self, *args, **kwargs)
        # A cache would be written a second time in backward.
        without = {name: None for name in ("cache", "layer_past") if kwargs.get(name) is not None}
        if kwargs.get("use_cache"):
            without["use_cache"] = False
        return self._gradient_checkpointing_func(functools.partial(forward, self, **{**kwargs, **without}), *args)

    return checkpointed


def layer_forward(recompute: bool, form, first, second):
    """A decoder layer of this form (equal.Layer): the sum after attention and the norm of it are one operator. `first`
    and `second`: facts of its norms before attention, if it is tigon's, and before the MLP."""
    before_attention, after_attention, before_mlp, after_mlp = form.norms

    def scaled(self, x, norm: str | None):
        x = x if norm is None else getattr(self, norm)(x)
        return x if form.multiplier is None else x * getattr(self, form.multiplier)

    def forward(self, hidden_states, **kwargs):
        for name in form.drops:
            kwargs.pop(name, None)
        norm, next_norm = getattr(self, before_attention), getattr(self, before_mlp)
        refuse_partitioned(getattr(next_norm, "weight", None))
        x = norm(hidden_states)
        with _made_by(norm, hidden_states, recompute, first, x):
            x = getattr(self, form.attention)(hidden_states=x, **kwargs)
        x = x[0] if isinstance(x, tuple) else x
        x, residual = add_and_norm(scaled(self, x, after_attention), hidden_states, next_norm, second)
        with _made_by(next_norm, residual, recompute, second, x):
            x = getattr(self, form.mlp)(x)
        x = x[0] if isinstance(x, tuple) else x  # experts may have the numbers of their router beside it
        return _add_for_next(self, scaled(self, x.view(residual.shape), after_mlp), residual)

    return _checkpointing(forward)


def first_norm(layer):
    """The norm that a layer begins with, if its forward is that of layer_forward."""
    own = vars(layer).get("forward")
    return getattr(layer, own.options[1].norms[0]) if isinstance(own, Forward) and own.make is layer_forward else None


def mlp_forward(mlp, recompute: bool):
    """Of an equal.Mlp."""

    def forward(self, x):
        if mlp.packed:
            halves = self.gate_up_proj(x).chunk(2, dim=-1)
        elif mlp.gate is None:
            halves = (self.up_proj(x),)
        else:
            halves = products.of_one_input(x, self.gate_proj, self.up_proj) or (self.gate_proj(x), self.up_proj(x))
        y = products.behind_gate(mlp.gate, *halves, self.down_proj) if recompute and mlp.gate is not None else None
        if y is None:
            y = mlp.activate(*halves)
            with instead_of(recompute, y, mlp.activate, *halves):
                y = self.down_proj(y)
        return y if mlp.scale == 1.0 else y * mlp.scale

    return forward


def experts_forward(experts):
    """Of equal.Experts."""

    def forward(self, hidden_states, top_k_index, top_k_weights):
        mixed = hidden_states.dtype != self.gate_up_proj.dtype and autocast_type(hidden_states) is None
        if mixed or not runs("moe", hidden_states):
            return type(self).forward(self, hidden_states, top_k_index, top_k_weights)
        y = ops.moe(hidden_states, self.gate_up_proj, self.down_proj, top_k_index, top_k_weights, limit=experts.limit)
        return y.to(hidden_states.dtype)  # transformers' sum, which is not autocast's

    return forward


def router_forward(router):
    """Of an equal.Router."""

    def forward(self, hidden_states):
        # Under autocast the logits are not f32; a model in f64 has a bias in f64 beside logits in f32.
        other = autocast_type(hidden_states) is not None or hidden_states.dtype == torch.float64
        if other or not products.is_whole(self.weight) or not runs("moe_router", hidden_states):
            return type(self).forward(self, hidden_states)
        return router(hidden_states, self.weight, getattr(self, "e_score_correction_bias", None), self.top_k)

    return forward


def linear_forward(least: int, most: int | None, measures: bool):
    """By tigon with at least so many rows, and fewer than `most`. Where autocast's type is another than the weight's and
    it `measures`, by what is measured in that type."""

    def is_tigons(self, x):
        to, of = autocast_type(x), self.weight.dtype
        fits = x.dtype == of if to is None else torch.float64 not in (x.dtype, of)
        if not fits or not runs("linear", x):
            return False
        rows = x.numel() // max(1, x.shape[-1])
        if measures and to not in (None, of):
            return is_faster(rows, self.in_features, self.out_features, to)
        return least <= rows and (most is None or rows < most)

    def forward(self, x):
        return (ops.linear if is_tigons(self, x) else F.linear)(x, self.weight, self.bias)

    return forward
