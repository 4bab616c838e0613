"""A forward of transformers in which names of its module stand for something else, for one module alone."""
from __future__ import annotations

import types


def innermost(function):
    """What decorators have wrapped."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def with_names(function, names: dict):
    """The same function with other values for these global names, inside the decorators that it has."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        code, scope = function.__code__, function.__globals__
        # torch.compile keeps what it compiled beside the code, and looks for globals in the module of that __name__.
        code = code.replace(co_name=f"{code.co_name}_of_tigon")
        scope = {name: value for name, value in scope.items() if name != "__name__"} | names
        closure = function.__closure__
    else:
        made = with_names(inner, names)
        code, scope = function.__code__, function.__globals__
        closure = tuple(types.CellType(made) if cell.cell_contents is inner else cell for cell in function.__closure__)
    result = types.FunctionType(code, scope, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    result.__dict__.update(function.__dict__)
    if inner is not None:
        result.__wrapped__ = made
    return result
