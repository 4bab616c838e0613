"""The record of what was replaced on a model, so that it can be reported and undone."""
from __future__ import annotations

import functools
import inspect
import logging

logger = logging.getLogger("tigon_torch")

_said: set[str] = set()


def say_once(sentence: str) -> None:
    """A warning, the first time only. Nothing while torch.compile traces."""
    import torch

    if torch.compiler.is_compiling() or sentence in _said:
        return
    _said.add(sentence)
    logger.warning(sentence)


class Report:
    """What apply() did: `replaced` counts modules by operator, `left` says in a sentence why something was not."""

    def __init__(self, model: str):
        self.model = model
        self.replaced: dict[str, int] = {}
        self.left: list[str] = []

    def count(self, operator: str) -> None:
        self.replaced[operator] = self.replaced.get(operator, 0) + 1

    def leave(self, sentence: str) -> None:
        if sentence not in self.left:
            self.left.append(sentence)

    def __str__(self) -> str:
        done = ", ".join(f"{name} ({count})" for name, count in sorted(self.replaced.items())) or "nothing"
        return "\n".join([f"tigon_torch: {self.model}: replaced {done}", *(f"  left: {s}" for s in self.left)])

    __repr__ = __str__


# What stood in the places that were patched, by name: () for nothing. It is an attribute of the patched object itself,
# so that a copy of a model, made by copy or by pickle, has a record of its own.
_RECORD = "_tigon_before"


def put(target: object, name: str, value: object) -> None:
    """Sets an attribute of this one module or class, and keeps what stood there."""
    record = vars(target).get(_RECORD, {})
    record.setdefault(name, (vars(target)[name],) if name in vars(target) else ())
    setattr(target, _RECORD, record)
    setattr(target, name, value)


def restore(target: object) -> None:
    """Undoes every put() on it."""
    for name, before in vars(target).get(_RECORD, {}).items():
        if before:
            setattr(target, name, *before)
        elif name in vars(target):
            delattr(target, name)
    if _RECORD in vars(target):
        delattr(target, _RECORD)


@functools.cache
def _made(make, options: tuple):
    return make(*options)  # one function for all modules of the same options: torch.compile compiles it once


class Forward:
    """The function make(*options) as a method of one module, whose class is not touched.

    A bound method of an inner function cannot be pickled. This can, if `make` is a function of a module and the options
    can: it keeps what the function was made of. A copy of the module has a copy of it, for the module that was copied.
    Who wraps a method takes its __func__, as accelerate does for mixed precision, and binds that to the module again; a
    wrapper of the object itself would lead a copy of the module back to the module.
    """

    def __init__(self, module, make, *options):
        self.module, self.make, self.options = module, make, options
        self.function = _made(make, options)

    def __call__(self, *args, **kwargs):
        return self.function(self.module, *args, **kwargs)

    @property
    def __self__(self):
        return self.module

    @property
    def __func__(self):
        return self.function

    @property
    def __code__(self):
        """That of the function: torch.export(strict=False) looks where a forward is written."""
        return self.function.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the function without the module: generate() and trainers read the names of arguments."""
        signature = inspect.signature(self.function)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __getstate__(self):
        return self.module, self.make, self.options

    def __setstate__(self, state) -> None:
        from .attention import register

        register()  # in a process that has not called apply(), transformers does not know attention of this name
        module, make, options = state
        self.__init__(module, make, *options)
