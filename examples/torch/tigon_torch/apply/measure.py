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


def _seconds(linear, x, weight, dy) -> float:
    start = time.perf_counter()
    torch.autograd.grad(linear(x, weight), (x, weight), dy)
    return time.perf_counter() - start


@functools.lru_cache(maxsize=None)
def _times(inputs: int, outputs: int, dtype: torch.dtype, threads: int) -> tuple[float, float]:
    """Seconds of forward and backward by PyTorch and by tigon, the shortest of several by turns."""
    rows = int(min(512, max(64, FLOPS / (6 * inputs * outputs))))
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        x = torch.randn(rows, inputs, dtype=dtype, device="cpu", requires_grad=True)
        weight = torch.randn(outputs, inputs, dtype=dtype, device="cpu", requires_grad=True)
        dy = torch.randn(rows, outputs, dtype=dtype, device="cpu")
        best = [float("inf"), float("inf")]
        for round in range(4):
            for which, linear in enumerate((F.linear, ops.linear)):
                seconds = _seconds(linear, x, weight, dy)
                if round > 0:  # the first call of each makes its code and its threads
                    best[which] = min(best[which], seconds)
    return best[0], best[1]


def linear_is_faster(inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    torchs, tigons = _times(inputs, outputs, dtype, torch.get_num_threads())
    return tigons < GAIN * torchs
