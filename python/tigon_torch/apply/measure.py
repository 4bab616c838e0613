"""Whether tigon's linear layer is faster here than PyTorch's, for one shape and type: measured, once a process."""
from __future__ import annotations

import functools
import time

import torch
import torch.nn.functional as F

from .. import ops

# What is not at least this much faster is left alone, so that noise decides nothing that matters.
GAIN = 0.95
# Enough work for a steady time, and little enough that a model of many shapes is measured in seconds.
FLOPS = 6e8
# What takes so long, so many times as long as the other, is not measured again.
CLEAR_SECONDS, CLEAR_FACTOR = 0.05, 4


def _seconds(linear, x, weight, dy) -> float:
    start = time.perf_counter()
    torch.autograd.grad(linear(x, weight), (x, weight), dy)
    return time.perf_counter() - start


@functools.lru_cache(maxsize=None)
def _times(inputs: int, outputs: int, dtype: torch.dtype, threads: int) -> tuple[float, float]:
    """Seconds of forward and backward by PyTorch and by tigon, the shortest of several by turns."""
    rows = int(min(512, max(64, FLOPS / (6 * inputs * outputs))))
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        x = torch.randn(rows, inputs, dtype=dtype, device="cpu")
        weight = torch.randn(outputs, inputs, dtype=dtype, device="cpu", requires_grad=True)
        dy = torch.randn(rows, outputs, dtype=dtype, device="cpu")

        def once(count):
            part = x[:count].requires_grad_()
            return tuple(_seconds(linear, part, weight, dy[:count]) for linear in (F.linear, ops.linear))

        # A product without instructions for its type takes seconds: few rows say enough.
        few = once(16)
        if max(few) > CLEAR_SECONDS and max(few) > CLEAR_FACTOR * min(few):
            return few
        once(rows)  # the first call of each makes its code and its threads
        rounds = [once(rows) for _ in range(3)]
    return min(r[0] for r in rounds), min(r[1] for r in rounds)


def linear_is_faster(inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    torchs, tigons = _times(inputs, outputs, dtype, torch.get_num_threads())
    return tigons < GAIN * torchs
