"""Which functions take DTensors, and how; what does it is loaded with the first one (sharded.py)."""
import functools
import inspect

from torch import Tensor, nn


def is_distributed(value) -> bool:
    if not isinstance(value, Tensor) or type(value) in (Tensor, nn.Parameter):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def _taking(run):
    """A decorator: run(sharded, function, arguments by name) where one of the arguments is a DTensor."""
    def decorate(function):
        names = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args, **kwargs):
            for value in (*args, *kwargs.values()):
                if is_distributed(value):
                    from . import sharded

                    return run(sharded, function, dict(zip(names, args), **kwargs))
            return function(*args, **kwargs)

        return call

    return decorate


def by_rows(*rows: str, columns: bool = False):
    """Of a function of these tensors of rows. Their axes but the last may be split over ranks, with columns=True the last
    one, too; what is split otherwise is gathered. Other tensors are parameters, whole on all ranks; their gradients are
    summed up over the ranks that have other rows."""
    return _taking(lambda sharded, function, named: sharded.by_parts(function, function.__name__, rows, columns, named))


def of_vocabulary(first: str, split: str, axis: int, parallel):
    """Of a loss of a DTensor `split` whose axis, the vocabulary, may be split over ranks: parallel(**arguments, group=,
    shard=) then makes it. `first` has to be a DTensor, too, and is gathered; results are the same on all ranks."""
    return _taking(lambda sharded, function, named: sharded.of_split_vocabulary(
        function, function.__name__, first, split, axis, parallel, named))
