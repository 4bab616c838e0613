"""Results that are cheap to make again are not kept for backward.

A linear layer keeps its input. Where that is the output of a norm or of a gate, whose own inputs are kept anyway, the
output is dropped, and made again when backward asks for it.
"""
from __future__ import annotations

import contextlib

import torch

# The hooks that are active; gradient checkpointing has its own. Where PyTorch cannot tell, nothing is dropped.
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


class _Again:
    """A result that was dropped: makes it once for all operators that kept it, and forgets it after the last one."""

    def __init__(self, make, inputs):
        self.make, self.inputs = make, [t.detach() for t in inputs]  # which share the counters of versions
        self.versions = [t._version for t in self.inputs]
        self.kept = self.served = 0
        self.result = None

    def __call__(self):
        if self.result is None:
            if [t._version for t in self.inputs] != self.versions:
                raise RuntimeError("tigon_torch: an input of a norm or a gate was modified in place before backward")
            with torch.no_grad():
                self.result = self.make(*self.inputs)
        result, self.served = self.result, self.served + 1
        if self.served >= self.kept:
            self.result, self.served = None, 0
        return result


def _is_ours(hooks) -> bool:
    """No hooks, or those of another result that is dropped: a gate's inside a norm's."""
    return hooks is None or hasattr(hooks[0], "of_tigon")


def instead_of(wanted: bool, result: torch.Tensor, make, *inputs: torch.Tensor):
    """While this context is open, operators that keep `result` keep make(*inputs) for later instead of its memory."""
    if not wanted or torch.compiler.is_compiling() or not result.requires_grad or not result.is_contiguous():
        return contextlib.nullcontext()
    if _top_hooks is None or not _is_ours(_top_hooks(False)):
        return contextlib.nullcontext()
    again = _Again(make, inputs)
    begin, numbers, dtype = result.data_ptr(), result.numel(), result.dtype

    def pack(tensor):
        whole = tensor.data_ptr() == begin and tensor.numel() == numbers and tensor.dtype == dtype
        if not whole or not tensor.is_contiguous():
            return tensor
        again.kept += 1
        return again, tensor.shape

    def unpack(packed):
        return packed[0]().view(packed[1]) if isinstance(packed, tuple) else packed

    pack.of_tigon = True
    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
