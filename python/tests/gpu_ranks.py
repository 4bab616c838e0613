"""The package on two GPUs with NCCL, by hand:

    torchrun --nproc_per_node=2 tests/gpu_ranks.py            two GPUs
    torchrun --nproc_per_node=2 tests/gpu_ranks.py --cpu      the same with gloo, where there are none

A patched Llama under DistributedDataParallel and FSDP2, each rank with half of every batch, beside one process with the
whole: losses and weights after a few steps of SGD in f32. And losses of a vocabulary that is split over the ranks, whose
exchange is the communicator of C++ operators (tigon_torch/ranks.py), on the CPU and on the GPUs. Ends with 1 where something is wrong.
"""
import argparse
import copy
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

import tigon_torch  # noqa: E402
from conftest import batch, build  # noqa: E402
from tigon_torch import ops  # noqa: E402

STEPS = 3


def train(model, rows, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        both = batch(seed=step, rows=4, ignored=False)
        loss = model(**{name: t[rows].to(device) for name, t in both.items()}, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def compare(name, model, losses, exact, expected, start):
    """The mean of the ranks' losses, and how far the weights are from those of one process, relative to their way."""
    dist.all_reduce(losses)
    error = ((losses / dist.get_world_size() - expected).abs() / expected.abs()).max().item()
    far = 0.0
    weights = dict(model.named_parameters())
    for key, p in exact.named_parameters():
        mine = weights[key].detach()
        mine = mine.full_tensor() if isinstance(mine, DTensor) else mine
        far = max(far, ((mine - p).norm() / (p - start[key]).norm().clamp_min(1e-9)).item())
    assert error <= 1e-5 and far <= 1e-3, (name, error, far)
    return f"{name}: losses within {error:.0e}, weights within {far:.0e} of their way"


def models(device):
    exact = build("llama", tie_word_embeddings=False).to(device)
    start = {name: p.detach().clone() for name, p in exact.named_parameters()}
    patched = [copy.deepcopy(exact) for _ in range(2)]
    for model in patched:
        report = tigon_torch.apply(model, linear=device.type == "cuda")
    expected = train(exact, slice(None), device)
    rank = dist.get_rank()
    own = slice(2 * rank, 2 * rank + 2)
    wrapped = DistributedDataParallel(patched[0], [device] if device.type == "cuda" else None)
    said = [str(report), compare("DistributedDataParallel", patched[0], train(wrapped, own, device), exact, expected, start)]
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in (*patched[1].model.layers, patched[1].lm_head, patched[1]):
        fully_shard(part, mesh=mesh)
    return [*said, compare("FSDP2", patched[1], train(patched[1], own, device), exact, expected, start)]


def vocabulary(device, dtype, near):
    """On the CPU by the group of the GPUs, whose bytes go by way of a GPU, or on the GPUs themselves."""
    generator = torch.Generator().manual_seed(5)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, w = (torch.randn(*s, generator=generator, dtype=torch.float64).to(device, dtype)
            for s in ((3, 5, 9), (6 * ranks, 9)))
    target = torch.randint(0, 6 * ranks, (3, 5), generator=generator).to(device)
    part, group = slice(6 * rank, 6 * rank + 6), {"group": dist.group.WORLD}
    pairs = {
        "mean": (lambda x, w: ops.vocab_parallel_fused_linear_cross_entropy(x, w, target, **group),
                 lambda x, w: ops.fused_linear_cross_entropy(x, w, target)),
        "logprobs": (lambda x, w: ops.logprobs(x, w, target, temperature=0.8, **group),
                     lambda x, w: ops.logprobs(x, w, target, temperature=0.8)),
    }
    for split, whole in pairs.values():
        found = []
        for loss, weight in ((split, w[part]), (whole, w)):
            of = [t.clone().requires_grad_() for t in (x, weight)]
            value = loss(*of)
            found.append([value.detach(), *torch.autograd.grad(value.sum(), of)])
        (value, dx, dw), (wanted, wanted_dx, wanted_dw) = found
        for actual, expected in ((value, wanted), (dx, wanted_dx), (dw, wanted_dw[part])):
            torch.testing.assert_close(actual, expected, rtol=near, atol=near)
    return [f"a vocabulary that is split over {ranks} ranks, {device.type}: the losses and gradients of one"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    on_cpu = parser.parse_args().cpu
    device = torch.device("cpu") if on_cpu else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if not on_cpu:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        torch.set_num_threads(1)
    dist.init_process_group("gloo" if on_cpu else "nccl")
    if dist.get_world_size() != 2:
        sys.exit("gpu_ranks.py: torchrun --nproc_per_node=2")
    said = [*models(device), *vocabulary(torch.device("cpu"), torch.float64, 1e-12)]
    if not on_cpu:
        said += vocabulary(device, torch.float32, 1e-5)
    if dist.get_rank() == 0:
        print("\n".join(said), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
