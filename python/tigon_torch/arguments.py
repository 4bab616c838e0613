"""What functions and optimizers take: every argument is looked at by its annotation before anything is computed."""
import functools
import inspect
import numbers
import re
import typing

import torch
from torch import Tensor
from torch.autograd import forward_ad


# As torch.library's own redispatch has it; functorch's transformations need what is above.
_below_autograd = torch._C._AutoDispatchBelowAutograd
_interpreters = torch._C._functorch.peek_interpreter_stack


def refuse(op: str, name: str, came, expected: str):
    raise ValueError(f"tigon: {op}: {name} is {came}; expected {expected}")


def _sizes(shape) -> str:
    return " x ".join(map(str, shape)) or "a number"


def expect_shape(op: str, name: str, t: Tensor | None, shape, more: str = "") -> None:
    if t is not None and tuple(t.shape) != tuple(shape):
        refuse(op, name, _sizes(t.shape), _sizes(shape) + more)


def expect_dims(op: str, name: str, t: Tensor, dims: int) -> None:
    if t.dim() != dims:
        raise ValueError(f"tigon: {op}: {name} has {t.dim()} dimensions; expected {dims}")


def one_a_row(op: str, x: Tensor, **labels) -> None:
    """Labels, if there are any, in the shape of x without its last axis."""
    for name, t in labels.items():
        expect_shape(op, name, t, x.shape[:-1], ", one a row")


def _shown(value) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str)) else f"of {type(value).__name__}"


def whole(op: str, name: str, value, least: int | None = None) -> int:
    """An integer; True and 2.0 are none."""
    expected = "an integer" if least is None else f"an integer of at least {least}"
    if isinstance(value, bool) or not isinstance(value, (int, numbers.Integral, torch.SymInt)):
        refuse(op, name, _shown(value), expected)
    if least is not None and value < least:
        refuse(op, name, value, expected)
    return value


def number(op: str, name: str, value) -> float:
    """A number; True is none. Its range is the operator's to check."""
    if isinstance(value, bool) or not isinstance(value, (float, int, numbers.Real, torch.SymInt, torch.SymFloat)):
        refuse(op, name, _shown(value), "a number")
    return value


def above_zero(op: str, name: str, value) -> float:
    """A number above 0 as it is, and 0.0 for None: what 0 stands for in tigon is not what a 0 says here."""
    if value is None:
        return 0.0
    if not value > 0:
        refuse(op, name, value, "a number above 0, or None")
    return value


def flag(op: str, name: str, value) -> bool:
    if not isinstance(value, bool):
        refuse(op, name, _shown(value), "True or False")
    return value


def _text(op: str, name: str, value) -> str:
    if not isinstance(value, str):
        refuse(op, name, _shown(value), "a name")
    return value


def one_of(table: dict, op: str, name: str, value):
    """What the table has for a name."""
    if value not in table:
        refuse(op, name, repr(value), "one of " + ", ".join(map(repr, table)))
    return table[value]


def _tensor(op: str, name: str, value) -> Tensor:
    if not isinstance(value, Tensor):
        refuse(op, name, _shown(value), "a tensor")
    if not (value.is_cpu or value.is_cuda or value.is_meta):
        refuse(op, name, f"on {value.device}", "the CPU or CUDA")
    return value


def on_one_device(op: str, named) -> None:
    """Of pairs of name and value: where one tensor has no memory, none is read."""
    first = None
    for name, value in named:
        if isinstance(value, Tensor):
            if first is None:
                first = name, value.device
            elif value.device != first[1]:
                refuse(op, name, f"on {value.device}", f"{first[1]}, as {first[0]}")


def without_tangents(op: str, tensors) -> None:
    """Refuses forward-mode differentiation, which would take every result for a constant."""
    if forward_ad._current_level < 0:
        return
    for t in tensors:
        if isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None:
            raise RuntimeError(f"tigon: {op}: an input has a forward-mode tangent; expected derivatives by backward "
                               "alone (PyTorch's own operators have both)")


def _without_transforms(op: str, tensors) -> None:
    """Refuses torch.func.grad and the others whose derivatives are not those of backward."""
    functorch = torch._C._functorch
    if not torch.is_grad_enabled() or all(i.key() == functorch.TransformType.Vmap for i in functorch.get_interpreter_stack()):
        return
    for t in tensors:
        wanted = t.requires_grad
        while not wanted and functorch.is_functorch_wrapped_tensor(t):
            t = functorch.get_unwrapped(t)
            wanted = t.requires_grad
        if wanted:
            raise RuntimeError(f"tigon: {op}: called inside torch.func.grad, vjp, jacrev or another of these; expected "
                               "derivatives by backward alone (PyTorch's own operators have both)")


_CHECKS = {Tensor: _tensor, float: number, int: whole, bool: flag, str: _text}


def _checks_of(function) -> dict:
    """The check of each annotated argument, and whether it may be None."""
    checks = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
        found = [_CHECKS[kind] for kind in kinds if kind in _CHECKS]
        checks[name] = (found[0] if found else None, type(None) in kinds)
    return checks


# Arguments that have a shorter name, or another one, in C++.
_IN_PYTHON = {"w": "weight", "b": "bias", "groups": "num_groups"}


def _in_python(op: str, names, sentence: str) -> str:
    """A sentence of C++ with the name of the function that was called, and its name of the argument."""
    found = re.match(r"tigon: \w+: (\w+)", sentence)
    if found is None:
        return sentence
    name = found.group(1)
    if name not in names and _IN_PYTHON.get(name) in names:
        name = _IN_PYTHON[name]
    return f"tigon: {op}: {name}{sentence[found.end():]}"


def check_options(cls: type, options: dict) -> None:
    """Options of a module, by the annotations of its constructor and of those that it calls."""
    checks = {}
    for base in reversed(cls.__mro__):
        if base.__module__ == cls.__module__ and "__init__" in vars(base):
            checks |= _checks_of(base.__init__)
    for name, value in options.items():
        check, may_be_none = checks.get(name, (None, True))
        if check is not None and not (value is None and may_be_none):
            check(cls.__name__, name, value)


def checked(function):
    """The function, whose arguments are what their annotations say, and whose tensors are on one device."""
    op, checks = function.__name__, _checks_of(function)
    names = tuple(checks)

    @functools.wraps(function)
    def call(*args, **kwargs):
        named = dict(zip(names, args), **kwargs)
        for name, value in named.items():
            check, may_be_none = checks.get(name, (None, True))  # the call refuses a name that there is not
            if check is not None and not (value is None and may_be_none):
                check(op, name, value)
        tensors = [value for value in named.values() if isinstance(value, Tensor)]
        if not all(t.is_cpu for t in tensors):
            on_one_device(op, named.items())
        without_tangents(op, tensors)
        transformed = not torch.compiler.is_compiling() and _interpreters() is not None
        if transformed:
            _without_transforms(op, tensors)
        try:
            if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed:
                return function(*args, **kwargs)
            with _below_autograd():  # whose implementations in Python take longer than a small operator
                return function(*args, **kwargs)
        except RuntimeError as error:
            said = _in_python(op, names, str(error))
            if said == str(error):
                raise
            raise type(error)(said) from None

    return call
