"""Where operators run. Every one has a kernel for CPUs; those for CUDA are in a library of their own, which is loaded where
PyTorch finds a GPU. An operator without a kernel for CUDA refuses tensors that are there."""
import pathlib
import warnings

import torch
from torch import Tensor

LIBRARY = pathlib.Path(__file__).with_name("_library_cuda.so")
_why_not: str | None = None  # why there is no library for CUDA


def load() -> None:
    """The library for CUDA, where there is one and a GPU. One that cannot be loaded leaves the CPU as it is."""
    global _why_not
    if not torch.cuda.is_available():
        _why_not = "PyTorch finds no GPU"
    elif not LIBRARY.exists():
        _why_not = "tigon_torch was built without its library for CUDA (docs/torch.md)"
    else:
        try:
            torch.ops.load_library(str(LIBRARY))
        except OSError as error:
            _why_not = f"the library for CUDA cannot be loaded ({error})"
            warnings.warn(f"tigon_torch: {_why_not}")


def operators_on_cuda() -> frozenset:
    """Operators that the library for CUDA has kernels of."""
    return frozenset(torch.ops.tigon.operators_on_cuda().split() if _why_not is None else ())


_without_cuda: set[str] = set()


def why_not() -> str | None:
    """Why no operator runs on CUDA, or None where some do."""
    return _why_not


def why_not_on_cuda(op: str) -> str | None:
    """Why an operator does not run on CUDA, or None where it does."""
    if op not in _without_cuda:
        return None
    return "tigon_torch has no kernel of it for CUDA" if _why_not is None else _why_not


def _refusal(op: str):
    why = why_not_on_cuda(op)

    def refuse(*args, **kwargs):
        raise NotImplementedError(f"tigon: {op}: tensors are on CUDA, and {why}; expected tensors on the CPU")

    return refuse


def refuse_others(library, operators) -> None:
    """Makes those of the operators that have no kernel for CUDA say so."""
    for op in operators:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"tigon::{op}", "CUDA"):
            _without_cuda.add(op)
            library.impl(op, _refusal(op), "CUDA")


def has_kernel(op: str, device: str) -> bool:
    """Whether torch.ops.tigon.<op> has a kernel on devices of this type."""
    return device == "cpu" or device == "cuda" and op not in _without_cuda


def runs(op: str, t: Tensor) -> bool:
    """The same for where a tensor is."""
    return t.is_cpu or t.is_cuda and op not in _without_cuda


def _kind(t: Tensor) -> str:
    return "cuda" if t.is_cuda else "cpu"


def autocast_type(t: Tensor) -> torch.dtype | None:
    """The type of autocast, where it is on for the device of a tensor."""
    return torch.get_autocast_dtype(_kind(t)) if torch.is_autocast_enabled(_kind(t)) else None


def without_autocast(t: Tensor):
    return torch.autocast(_kind(t), enabled=False)
