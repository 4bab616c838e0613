"""How PyTorch learns of tigon's operators: results without memory for torch.compile, and gradients.

Most gradients are no differentiable functions of their own: whoever differentiates one gets an error, where PyTorch
would take it for a constant. `differentiable` says that a backward is made of operators that have gradients.
"""
import functools
import hashlib

import torch
import torch.compiler.config
from torch import Tensor
from torch.library import register_autograd, register_fake

from .arguments import on_one_device, without_tangents


_schemas: list[str] = []
names: list[str] = []  # of all operators that have results and gradients here


def digest(schemas) -> str:
    return "tigon_torch " + hashlib.sha256("\n".join(sorted(schemas)).encode()).hexdigest()[:16]


def tag_compiled_code() -> None:
    """Inductor keeps compiled graphs on disk and finds them by the names of operators, not by their arguments. With
    those in its key it finds none that was compiled for another release of tigon_torch, whose calls would fail."""
    torch.compiler.config.cache_key_tag += digest(_schemas)


def fake(op: str, function=None):
    """Registers what makes an operator's results without computing them; with the name alone it is a decorator."""
    if function is None:
        return lambda f: fake(op, f)
    schema = getattr(torch.ops.tigon, op).default._schema
    _schemas.append(str(schema))
    names.append(op)
    arguments = [argument.name for argument in schema.arguments]

    @functools.wraps(function)
    def made(*args):
        on_one_device(op, zip(arguments, args))  # PyTorch asks for them where one tensor has no memory
        return function(*args)

    register_fake(f"tigon::{op}")(made)
    return function


@torch.library.custom_op("tigon::once", mutates_args=())
def _once(gradient: Tensor, of: Tensor, op: str) -> Tensor:
    """A gradient as it is, and an error for who differentiates it. `of` has no elements, and the history of all that
    the gradient is made of. An operator and no autograd.Function, because vmap loses the history of those."""
    return gradient.clone()


@_once.register_fake
def _(gradient, of, op):
    return torch.empty_like(gradient)


def _keep_name(ctx, inputs, output):
    ctx.op = inputs[2]


def _refuse(ctx, _):
    raise RuntimeError(f"tigon: {ctx.op}: a gradient of its gradient is wanted; expected first derivatives alone "
                       "(PyTorch's own operators have both)")


_once.register_autograd(_refuse, setup_context=_keep_name)


class _Unpacked:
    """A context whose saved tensors are unpacked once, as gradient checkpointing asks for."""

    def __init__(self, ctx):
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name):
        return getattr(self._ctx, name)


def _without_second(op: str, backward, ctx, upstream):
    """The gradients of backward, which records nothing, as functions that have no derivative."""
    ctx = _Unpacked(ctx)
    with torch.no_grad():
        gradients = backward(ctx, *upstream)
    of = [t[None][:0].reshape(-1).to(torch.float32)
          for t in (*upstream, *ctx.saved_tensors) if t is not None and t.requires_grad]
    return tuple(g if g is None else _once(g, sum(of[1:], of[0]), op) for g in gradients) if of else gradients


def autograd(op: str, backward, setup_context, differentiable: bool = False) -> None:
    """Registers an operator's gradients."""

    def run(ctx, *upstream):
        without_tangents(op, upstream)
        if differentiable or not torch.is_grad_enabled():  # it is with create_graph=True
            return backward(ctx, *upstream)
        return _without_second(op, backward, ctx, upstream)

    register_autograd(f"tigon::{op}", run, setup_context=setup_context)
