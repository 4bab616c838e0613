"""The record of what was replaced on a model, so that it can be reported and undone."""
from __future__ import annotations

import logging
import types
import weakref

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


_MISSING = object()


class Patches:
    """Attributes that were set on objects, with what stood there before; undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[object, str, object]] = []

    def set(self, target: object, name: str, value: object) -> None:
        before = vars(target).get(name, _MISSING)
        self._undo.append((target, name, before))
        setattr(target, name, value)

    def method(self, target: object, name: str, function) -> None:
        """The function becomes a method of this one object; its class is not touched."""
        self.set(target, name, types.MethodType(function, target))

    def call(self, function) -> None:
        """Something to be called when the patches are undone."""
        self._undo.append((function, "", _MISSING))

    def undo(self) -> None:
        while self._undo:
            target, name, before = self._undo.pop()
            if not name:
                target()
            elif before is _MISSING:
                if name in vars(target):
                    delattr(target, name)
            else:
                setattr(target, name, before)


# Keyed by identity: a model that is collected takes its record along.
_of_models: "weakref.WeakKeyDictionary[object, Patches]" = weakref.WeakKeyDictionary()


def patches_of(model) -> Patches | None:
    return _of_models.get(model)


def remember(model, patches: Patches) -> None:
    _of_models[model] = patches


def forget(model) -> Patches | None:
    return _of_models.pop(model, None)
