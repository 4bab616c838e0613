"""Linear layers on a GPU, with fewer passes over memory in backward than autograd makes of single operators.

The gradient of what several layers read is summed by their products: autograd would add their gradients one by one. The
output of a gate, which the layer behind it needs for the gradient of its weight, is made by the pass that makes the
gradients of the gate. Where that would not be what the layers themselves do (hooks, adapters, autocast, weights of
another type, torch.compile), the layers are called.
"""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..devices import autocast_type, why_not
from .patch import Forward
from .sharded import has_hooks

_ops = torch.ops.tigon


def on_gpu(x: torch.Tensor) -> bool:
    return x.is_cuda and why_not() is None


def is_whole(weight) -> bool:
    """Whether a weight is there outside its own module's call: FSDP2's parts are DTensors, DeepSpeed ZeRO-3's have a number."""
    return type(weight) is nn.Parameter and not hasattr(weight, "ds_id")


def is_plain(layer) -> bool:
    """Whether a layer is F.linear of its weight and bias, and no more."""
    if type(layer) is not nn.Linear or not is_whole(layer.weight) or has_hooks(layer):
        return False
    own = vars(layer).get("forward")
    return own is None or isinstance(own, Forward) and own.make is beside_forward


def _fits(x: torch.Tensor, *layers) -> bool:
    """Whether these are plain linear layers of a GPU, of the type of x, in a call that autograd records."""
    if not on_gpu(x) or torch.compiler.is_compiling() or not torch.is_grad_enabled() or type(x) is not torch.Tensor:
        return False
    return autocast_type(x) is None and all(is_plain(layer) and layer.weight.dtype == x.dtype for layer in layers)


def _rows(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1, t.shape[-1])


class _OfOneInput(torch.autograd.Function):
    """F.linear(x, w, b) for each pair of `layers`, which has the weights and biases alternately."""

    @staticmethod
    def forward(ctx, x, *layers):
        ctx.set_materialize_grads(False)
        weights = layers[::2]
        trained = any(ctx.needs_input_grad[1::2])
        ctx.save_for_backward(x if trained else None, *weights)
        ctx.shape = x.shape
        return tuple(F.linear(x, w, b) for w, b in zip(weights, layers[1::2]))

    @staticmethod
    def backward(ctx, *upstream):
        x, *weights = ctx.saved_tensors
        dx, gradients = None, []
        for i, (dy, w) in enumerate(zip(upstream, weights)):
            need_w, need_b = ctx.needs_input_grad[1 + 2 * i : 3 + 2 * i]
            if dy is None:
                gradients += [None, None]
                continue
            dy = _rows(dy)
            if ctx.needs_input_grad[0]:
                dx = dy @ w if dx is None else dx.addmm_(dy, w)
            gradients += [dy.t() @ _rows(x) if need_w else None, dy.sum(0) if need_b else None]
        return (dx if dx is None else dx.view(ctx.shape), *gradients)


def of_one_input(x: torch.Tensor, *layers):
    """The outputs of linear layers of the same input, or None where the layers have to be called."""
    if not _fits(x, *layers):
        return None
    return _OfOneInput.apply(x, *(t for layer in layers for t in (layer.weight, layer.bias)))


class _BehindGate(torch.autograd.Function):
    """F.linear(gate(a, b), w, bias) of a gate of equal.py; what it keeps of the gate are its inputs."""

    @staticmethod
    def forward(ctx, gate, a, b, w, bias):
        ctx.gate = gate
        ctx.save_for_backward(a, b, w)
        return F.linear(gate(a, b), w, bias)

    @staticmethod
    def backward(ctx, upstream):
        a, b, w = ctx.saved_tensors
        _, *need_ab, need_w, need_bias = ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody differentiates gradients
            y = ctx.gate(a, b)
            of = [t for t, needed in zip((a, b), need_ab) if needed]
            made = iter(torch.autograd.grad(y, of, (_rows(upstream) @ w).view(a.shape), create_graph=True))
            dw = _rows(upstream).t() @ _rows(y) if need_w else None
            return (None, *(next(made) if needed else None for needed in need_ab), dw,
                    _rows(upstream).sum(0) if need_bias else None)
        upstream = _rows(upstream)
        dy = (upstream @ w).view(a.shape)
        name, numbers = _kernel_of(ctx.gate)
        if need_w and all(need_ab):
            y, da, db = getattr(_ops, f"{name}_backward_with_output")(dy, a, b, *_arguments(name, numbers))
        else:
            da, db = getattr(_ops, f"{name}_backward")(dy, a, b, *_arguments(name, numbers), *need_ab)
            y = ctx.gate(a, b) if need_w else None
        dw = upstream.t() @ _rows(y) if need_w else None
        return (None, da if need_ab[0] else None, db if need_ab[1] else None, dw,
                upstream.sum(0) if need_bias else None)


def _kernel_of(gate):
    """The name of the operator of a gate, and its numbers as its kernel takes them."""
    if gate.activation == "silu":
        return "swiglu", [gate.multiplier, 1.0, math.inf if gate.limit is None else gate.limit, 1.0, 0.0]
    return "geglu", [float(gate.activation == "tanh")]


def _arguments(name: str, numbers):
    return [bool(numbers[0])] if name == "geglu" else numbers


def behind_gate(gate, a: torch.Tensor, b: torch.Tensor, layer):
    """layer(gate(a, b)), or None where the layer has to be called."""
    if not (a.requires_grad or b.requires_grad) or not _fits(a, layer):
        return None
    return _BehindGate.apply(gate, a, b, layer.weight, layer.bias)


# Layers that are called one by one with the same input, as query, key and value are.

BESIDE = "_tigon_beside"  # the attribute of such a layer


class Beside:
    """Layers of one input: the first that is called computes all of them, and the others take what is theirs. Where they
    turn out to have inputs of their own, each is called for itself from then on."""

    def __init__(self, *layers):
        self.layers, self.ready, self.joint = layers, {}, True

    def __call__(self, layer, x: torch.Tensor):
        ready, of = self.ready.pop(id(layer), None), self.ready.get("x")
        if ready is not None and of is x:
            if len(self.ready) == 1:
                self.ready.clear()
            return ready
        if self.ready:
            self.joint = False
            self.ready.clear()
        outputs = of_one_input(x, *self.layers) if self.joint else None
        if outputs is None:
            return F.linear(x, layer.weight, layer.bias)
        self.ready = {id(other): y for other, y in zip(self.layers, outputs) if other is not layer} | {"x": x}
        return next(y for other, y in zip(self.layers, outputs) if other is layer)

    def __getstate__(self):
        return self.layers, self.joint

    def __setstate__(self, state):
        (self.layers, self.joint), self.ready = state, {}


def beside_forward():
    def forward(self, x):
        return vars(self)[BESIDE](self, x)

    return forward
