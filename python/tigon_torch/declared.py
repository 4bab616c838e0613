"""Operators of one declaration: its schema, what its results are like, what backward reads and which gradients there
are.

From it come the schemas of forward and backward, their implementations over the library's kernel of that name, results
without memory for torch.compile, and gradients whose own gradients are refused. A kernel of csrc takes the tensors of
the schema, then the results, then the numbers; that of backward the gradients of results, what is kept, the gradients
of inputs and the numbers. What is not there or not wanted is None, and has no memory in the kernel.
"""
import dataclasses
import re

import torch
from torch import Tensor

from .devices import operators_on_cuda
from .registration import autograd, fake

_ops = torch.ops.tigon
_run_kernel = _ops.run_kernel.default
library = torch.library.Library("tigon", "FRAGMENT")
_on_cuda = operators_on_cuda()
torch.library.register_fake("tigon::run_kernel", lambda *_: None)  # it writes to memory, of which a fake tensor has none


def _devices(name: str) -> tuple[str, ...]:
    return ("CPU", "CUDA") if name in _on_cuda else ("CPU",)


# In place, and says so in its schema. run_kernel does not: it is called by operators of tigon alone.
library.define("times_upstream(Tensor upstream, Tensor(a!) gradient) -> ()")
for _device in _devices("times_upstream"):
    library.impl("times_upstream", lambda upstream, gradient: _run_kernel(
        "times_upstream", "upstream", 1, [upstream, gradient], []), _device)
fake("times_upstream", lambda *_: None)


def like(t: Tensor) -> Tensor:
    """Memory for what is like t; heads keep their order in memory."""
    made = torch.empty_like(t) if t.dim() == 4 else t.new_empty(t.shape)
    return made if made.dim() != 4 or made.stride(3) == 1 else t.new_empty(t.shape)


def type_of_sums(t: Tensor) -> torch.dtype:
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def sums(t: Tensor, *shape: int) -> Tensor:
    """Memory for numbers in the type of sums over t."""
    return t.new_empty(shape, dtype=type_of_sums(t))


def kept(t: Tensor, *shape: int) -> Tensor:
    """Memory for what backward reads and nobody else, in the type in which t is computed."""
    return t.new_empty(shape, dtype=torch.float32 if t.dtype == torch.float16 else t.dtype)


def is_one(g) -> bool:
    """Whether an upstream gradient is known to be 1; what is being traced, or is on a GPU, is not known."""
    return type(g) is Tensor and g.is_cpu and not torch.compiler.is_compiling() and g.numel() == 1 and g.item() == 1


class Made:
    """Gradients that were made in forward, for one backward: they then belong to who asked, and may become .grad."""

    def __init__(self, gradients):
        self.gradients = gradients

    def take(self, upstream):
        """Times the upstream gradient, or None after the first time."""
        gradients, self.gradients = self.gradients, None
        if gradients is None or is_one(upstream):
            return gradients
        if upstream.is_cuda and upstream.numel() == 1 and not torch.compiler.is_compiling():  # in place: a head's gradient is large
            for g in gradients:
                if g.numel() != 0:  # memory is left alone where the number is 1
                    _ops.times_upstream(upstream, g)
            return gradients
        return tuple(g if g.numel() == 0 else g * upstream.to(g.dtype) for g in gradients)


def _with_arity(results):
    return results[0] if len(results) == 1 else tuple(results)


def _define(name, arguments, results, makes, read, kept, count):
    """An operator whose kernel reads the first `read` tensors; `kept` of all of them come before its `count` numbers.
    makes(*arguments): pairs of memory for a result and whether the kernel writes it."""
    names = " ".join(argument.split()[1] for argument in arguments[:read])

    def run(*args):
        made = makes(*args)
        written = [t if given else None for t, given in made]
        _run_kernel(name, names, read, [*args[:read], *written], [*map(float, args[kept : kept + count])])
        return _with_arity([t for t, _ in made])

    library.define(f"{name}({', '.join(arguments)}) -> ({', '.join('Tensor ' + r for r in results)})")
    for device in _devices(name):
        library.impl(name, run, device)
    fake(name, lambda *args: _with_arity([t for t, _ in makes(*args)]))


@dataclasses.dataclass
class _Declared:
    name: str
    arguments: list  # (type, name)
    results: list  # names
    makes: object
    keeps: list
    likes: dict  # of an input with a gradient, what the gradient is like
    always: list  # of those, what the kernel makes in any case
    upstream: list
    early: bool
    zeros: bool

    def __post_init__(self):
        self.tensors = [name for kind, name in self.arguments if kind.startswith("Tensor")]
        self.numbers = [(kind, name) for kind, name in self.arguments if not kind.startswith("Tensor")]
        self.shapes = [name for name in self.likes.values() if name not in self.keeps]
        self.needs = ", ".join(f"bool need_{name}" for name in self.likes)

    def gradients_of(self, named, need, beside):
        """Pairs of memory and whether it is wanted."""
        made = []
        for (name, of), wanted in zip(self.likes.items(), need):
            t = named[of]
            wanted = (wanted or name in self.always) and t is not None
            made.append((like(t) if wanted else (beside if t is None else t).new_empty((0,)), wanted))
        return made

    def forward(self):
        count = len(self.arguments)

        def makes(*args):
            results = self.makes(*args[:count])
            made = [(t, t is not None) for t in (results if isinstance(results, tuple) else (results,))]
            made = [(args[0].new_empty((0,)) if t is None else t, given) for t, given in made]
            if self.early:
                made += self.gradients_of(dict(zip(self.tensors, args)), args[count:], args[0])
            return made

        arguments = [" ".join(argument) for argument in self.arguments] + ([self.needs] if self.early else [])
        results = self.results + ["d" + name for name in self.likes] * self.early
        _define(self.name, arguments, results, makes, len(self.tensors), len(self.tensors), len(self.numbers))

    def backward(self):
        kinds = dict((name, kind) for kind, name in self.arguments)
        optional = "Tensor?" if len(self.upstream) > 1 and not self.zeros else "Tensor"
        saved = self.keeps + self.shapes
        arguments = [f"{optional} d{name}" for name in self.upstream]
        arguments += [f"{kinds.get(name, 'Tensor')} {name}" for name in saved]
        first = len(arguments)
        arguments += [" ".join(number) for number in self.numbers] + [self.needs]

        def makes(*args):
            named = dict(zip(saved, args[len(self.upstream) : first]))
            beside = args[len(self.upstream)]  # which is there, as an upstream gradient may not be
            return self.gradients_of(named, args[first + len(self.numbers) :], beside)

        _define(self.name + "_backward", arguments, ["d" + name for name in self.likes], makes,
                len(self.upstream) + len(self.keeps), first, len(self.numbers))

    def autograd(self):
        names = [name for _, name in self.arguments]
        extra = len(self.likes) * self.early
        run = getattr(_ops, self.name + "_backward")
        count = len(names)
        # What depends on inputs that are not kept shows whoever differentiates gradients that it does.
        linked = {*self.upstream, *(self.keeps if not set(self.likes) <= set(self.keeps) else ())}

        def setup_context(ctx, inputs, output):
            outputs = output if isinstance(output, tuple) else (output,)
            named = dict(zip(self.results, outputs)) | dict(zip(names, inputs))
            constant = [t for name, t in zip(self.results, outputs) if name not in linked]
            constant += outputs[len(self.results):]
            if constant:
                ctx.mark_non_differentiable(*constant)
            ctx.numbers = [named[name] for _, name in self.numbers]
            ctx.save_for_backward(*(named[name] for name in self.keeps + self.shapes))
            if self.early:
                need = inputs[count:]
                ctx.made = Made(outputs[len(self.results):] if any(need) else None)
            ctx.set_materialize_grads(self.zeros)

        def backward(ctx, *gradients):
            given = [g for name, g in zip(self.results, gradients) if name in self.upstream]
            if all(g is None for g in given):
                return (None,) * (count + extra)
            needed = dict(zip(names, ctx.needs_input_grad))
            need = [needed[name] for name in self.likes]
            made = ctx.made.take(given[0]) if self.early else None
            if made is None:
                made = run(*given, *ctx.saved_tensors, *ctx.numbers, *need)
            made = dict(zip(self.likes, made if isinstance(made, tuple) else (made,)))
            return (*(made[name] if name in made and needed[name] else None for name in names), *(None,) * extra)

        autograd(self.name, backward, setup_context)


def _parts_of(schema: str):
    """The name, the arguments with their types, and the names of the results."""
    name, arguments, results = re.fullmatch(r"(\w+)\((.*)\) -> (.*)", schema).groups()
    return name, arguments.split(", "), results.split()


def without_gradient(schema: str, makes) -> None:
    """Declares an operator that is not differentiated. schema and makes: as those of operator."""
    name, arguments, results = _parts_of(schema)
    tensors = sum(argument.startswith("Tensor") for argument in arguments)
    _define(name, arguments, results, lambda *args: [(t, True) for t in makes(*args)], tensors, tensors,
            len(arguments) - tensors)


def operator(schema: str, makes, keeps: str, gradients: str, upstream: str | None = None,
             early: bool = False, zeros: bool = False) -> None:
    """Declares an operator and its backward.

    schema: "name(Tensor x, Tensor? w, float eps) -> y rstd", tensors before numbers. makes(*arguments): the results,
    uninitialised; None for what the kernel shall not write. keeps: inputs and results that the kernel of backward
    reads. gradients: inputs that have one; "x=y" where it is like y, so that x need not be kept. upstream: results with
    a gradient, the first without it. early: gradients are made in forward, for an upstream gradient of 1, where its
    arguments after those of the schema, one for each gradient, say so. zeros: the kernel takes zeros, and not None, for
    the gradient of one of several results that has no use.
    """
    name, arguments, results = _parts_of(schema)
    always = [g.replace("!", "").split("=")[0] for g in gradients.split() if "!" in g]
    likes = dict((g.split("=") + [g])[:2] for g in gradients.replace("!", "").split())
    arguments = [tuple(a.split()) for a in arguments]
    declared = _Declared(name, arguments, results, makes, keeps.split(), likes, always,
                         upstream.split() if upstream else results[:1], early, zeros)
    declared.forward()
    if likes:
        declared.backward()
        declared.autograd()
