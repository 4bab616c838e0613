"""Whether tigon's linear layer is faster here than PyTorch's, for one shape and type: measured, once a process."""
from __future__ import annotations

import contextlib
import functools
import time

import torch
import torch.nn.functional as F

from .. import ops
from ..arguments import _interpreters

TYPES = (torch.float32, torch.bfloat16, torch.float16)
# What is not at least this much faster is left alone, so that noise decides nothing that matters.
GAIN = 0.95
# Enough work for a steady time, and little enough that a model of many shapes is measured in seconds.
FLOPS = 6e8
# What takes so long, so many times as long as the other, is not measured again.
CLEAR_SECONDS, CLEAR_FACTOR = 0.05, 4
# Fewer rows wait for the weights, and are measured apart: forward alone, of one row and of some, with weights of so many
# bytes, which caches do not hold.
FEW, SOME = 16, 4
WEIGHTS = 64 << 20


def _is_clear(seconds) -> bool:
    return max(seconds) > CLEAR_SECONDS and max(seconds) > CLEAR_FACTOR * min(seconds)


@contextlib.contextmanager
def _alone():
    """Without what the call that measures is under: autocast, inference mode, the hooks of gradient checkpointing."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]), hooks:
        yield


def _seconds(linear, x, weight, dy) -> float:
    start = time.perf_counter()
    torch.autograd.grad(linear(x, weight), (x, weight), dy)
    return time.perf_counter() - start


@functools.lru_cache(maxsize=None)
def _times(inputs: int, outputs: int, dtype: torch.dtype, threads: int) -> tuple[float, float]:
    """Seconds of forward and backward by PyTorch and by tigon, the shortest of several by turns."""
    rows = int(min(512, max(64, FLOPS / (6 * inputs * outputs))))
    with _alone(), torch.enable_grad():
        x = torch.randn(rows, inputs, dtype=dtype, device="cpu")
        weight = torch.randn(outputs, inputs, dtype=dtype, device="cpu", requires_grad=True)
        dy = torch.randn(rows, outputs, dtype=dtype, device="cpu")

        def once(count):
            part = x[:count].requires_grad_()
            return tuple(_seconds(linear, part, weight, dy[:count]) for linear in (F.linear, ops.linear))

        # A product without instructions for its type takes seconds: few rows say enough.
        few = once(FEW)
        if _is_clear(few):
            return few
        once(rows)  # the first call of each makes its code and its threads
        rounds = [once(rows) for _ in range(3)]
    return min(r[0] for r in rounds), min(r[1] for r in rounds)


@functools.lru_cache(maxsize=None)
def _times_of_few(rows: int, inputs: int, outputs: int, dtype: torch.dtype, threads: int) -> tuple[float, float]:
    """Seconds of a forward pass of so few rows by PyTorch and by tigon, the shortest of several by turns."""
    with _alone(), torch.no_grad():
        x = torch.randn(rows, inputs, dtype=dtype, device="cpu")
        weight = torch.randn(outputs, inputs, dtype=dtype, device="cpu")
        weights = [weight] + [weight.clone() for _ in range(WEIGHTS // (weight.numel() * weight.element_size()))]

        def seconds(linear) -> float:
            start = time.perf_counter()
            for w in weights:
                linear(x, w)
            return time.perf_counter() - start

        rounds = []
        for _ in range(4):
            rounds.append((seconds(F.linear), seconds(ops.linear)))
            if _is_clear(rounds[-1]):
                return rounds[-1]
    return min(r[0] for r in rounds), min(r[1] for r in rounds)


def _gains(times) -> bool:
    torchs, tigons = times
    return tigons < GAIN * torchs


def linear_is_faster(inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    """With FEW rows and more."""
    if dtype not in TYPES:
        return False
    return _gains(_times(inputs, outputs, dtype, torch.get_num_threads()))


def least_rows(inputs: int, outputs: int, dtype: torch.dtype) -> int:
    """From which number of rows on, below FEW, tigon's is faster; FEW: from none."""
    if dtype not in TYPES:
        return FEW
    for rows, least in ((1, 1), (SOME, 2)):
        if _gains(_times_of_few(rows, inputs, outputs, dtype, torch.get_num_threads())):
            return least
    return FEW


def is_faster(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    """With so many rows, in a call of a layer. Not where its times would be those of tracing."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() != 0 or _interpreters() is not None:
        return False
    shape = inputs, outputs, dtype
    return rows >= least_rows(*shape) if rows < FEW else linear_is_faster(*shape)
