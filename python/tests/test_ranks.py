"""Losses of a vocabulary that is split over two processes, beside those of one."""
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import ON_MODEL

from tigon_torch import drop_in, ops

# On the model of a GPU f32, in which it was built.
TYPE, NEAR = (torch.float32, 2e-5) if ON_MODEL else (torch.float64, 1e-12)
CLASSES = (7, 4)  # of each rank


def inputs():
    generator = torch.Generator().manual_seed(5)
    x, w, b = (torch.randn(*s, generator=generator, dtype=TYPE) for s in ((3, 5, 9), (11, 9), (11,)))
    target = torch.randint(0, 11, (3, 5), generator=generator)
    target[1, 2] = -100
    return x, w, b, target


def losses(x, w, b, target, group, shard):
    """One of each kind and of each reduction."""
    split = {"group": group, "shard": shard}
    nll, entropy = ops.vocab_parallel_scaled_cross_entropy(x, w, target, b, temperature=0.8, return_entropy=True, **split)
    return {
        "logits": ops.vocab_parallel_cross_entropy(x @ w.t() + b, target, label_smoothing=0.1, **split),
        "mean": ops.vocab_parallel_fused_linear_cross_entropy(x, w, target, b, z_loss=0.1, **split),
        "none": ops.vocab_parallel_fused_linear_cross_entropy(x, w, target, b, softcap=3.0, reduction="none", **split),
        "nll": nll, "entropy": entropy, "logprobs": ops.logprobs(x, w, target, b, 0.8, **split),
    }


def plain(x, w, b, target):
    nll, entropy = ops.fused_linear_scaled_cross_entropy(x, w, target, b, 0.8, return_entropy=True)
    return {
        "logits": ops.cross_entropy(x @ w.t() + b, target, label_smoothing=0.1, reduction="none"),
        "mean": ops.fused_linear_cross_entropy(x, w, target, b, z_loss=0.1),
        "none": ops.fused_linear_cross_entropy(x, w, target, b, softcap=3.0, reduction="none"),
        "nll": nll, "entropy": entropy, "logprobs": ops.logprobs(x, w, target, b, 0.8),
    }


def results_of(f, x, w, b):
    """Every loss, and the gradients of its sum."""
    found = {}
    for name in f(x, w, b):
        x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
        loss = f(x, w, b)[name]
        loss.sum().backward()
        found[name] = [loss.detach(), x.grad, w.grad, b.grad]
    return found


def expert_inputs():
    generator = torch.Generator().manual_seed(6)
    x, gate, up, down, weights = (torch.randn(*s, generator=generator, dtype=TYPE)
                                  for s in ((8, 6), (4, 5, 6), (4, 5, 6), (4, 6, 5), (8, 2)))
    return (x, weights, gate, up, down), torch.randint(0, 4, (8, 2), generator=generator)


def experts_of(rank, group):
    """Half of the tokens and of the experts: the result and gradients."""
    tensors, indices = expert_inputs()
    part = slice(4 * rank, 4 * rank + 4), slice(2 * rank, 2 * rank + 2)
    x, weights, gate, up, down = (t[part[i > 1]].clone().requires_grad_() for i, t in enumerate(tensors))
    y = drop_in.LigerExpertParallelFusedMoe(group)(x, indices[part[0]], weights, gate, up, down, 4)
    y.square().sum().backward()
    return [y.detach(), *(t.grad for t in (x, weights, gate, up, down))]


def one_rank(rank, folder, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x, w, b, target = inputs()
    first = sum(CLASSES[:rank])
    part = slice(first, first + CLASSES[rank])
    group = dist.group.WORLD
    found = results_of(lambda x, w, b: losses(x, w, b, target, group, (first, 11)), x, w[part], b[part])
    liger = drop_in.LigerVocabParallelCrossEntropy()((x @ w.t())[..., part][..., :4], target.clamp(max=7), group)
    if not ON_MODEL:  # hosts of GPUs compare nothing
        with pytest.raises((ValueError, RuntimeError), match="tigon: .*vocab is 12; expected 11"):
            ops.vocab_parallel_cross_entropy(x @ w[part].t(), target, group, shard=(first, 12))
    experts = None if ON_MODEL else experts_of(rank, group)  # of which a GPU has no kernel
    torch.save((found, liger, experts), os.path.join(folder, str(rank)))
    dist.destroy_process_group()


def spawned(run, folder, count):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, (str(folder), port), nprocs=count)


def one_of_three(rank, folder, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
    x, w, b, target = inputs()
    part, exchanges, own = slice(4 * rank, min(4 * rank + 4, 11)), [], dist.all_to_all_single

    def counted(received, sent, **how):
        exchanges.append(sent.numel())
        return own(received, sent, **how)

    dist.all_to_all_single = counted
    x, w, b = (t.requires_grad_() for t in (x, w[part], b[part]))
    loss = ops.vocab_parallel_fused_linear_cross_entropy(x, w, target, b, dist.group.WORLD, shard=(4 * rank, 11))
    loss.backward()
    torch.save(([loss.detach(), x.grad, w.grad, b.grad], exchanges), os.path.join(folder, str(rank)))
    dist.destroy_process_group()


@pytest.mark.skipif(ON_MODEL, reason="GPUs gather, and exchange no shares")
def test_three_processes_sum_by_shares(tmp_path):
    """Sums over more than two ranks: each has the sum of its share, and gathers those of the others."""
    spawned(one_of_three, tmp_path, 3)
    ranks = [torch.load(tmp_path / str(rank)) for rank in range(3)]
    x, w, b, target = inputs()
    x, w, b = (t.requires_grad_() for t in (x, w, b))
    loss = ops.fused_linear_cross_entropy(x, w, target, b)
    loss.backward()
    for (value, dx, *_), exchanges in ranks:
        assert exchanges == [14 * 9 * 8]  # dx of the rows that count in f64, a third of it for each
        torch.testing.assert_close(value, loss.detach(), rtol=NEAR, atol=NEAR)
        torch.testing.assert_close(dx, x.grad, rtol=NEAR, atol=NEAR)
        assert torch.equal(dx, ranks[0][0][1])
    for i, whole in ((2, w.grad), (3, b.grad)):
        torch.testing.assert_close(torch.cat([found[i] for found, _ in ranks]), whole, rtol=NEAR, atol=NEAR)


def test_two_processes_have_the_loss_of_one(tmp_path):
    spawned(one_rank, tmp_path, 2)
    x, w, b, target = inputs()
    wanted = results_of(lambda x, w, b: plain(x, w, b, target), x, w, b)
    ranks = [torch.load(tmp_path / str(rank)) for rank in (0, 1)]
    for name, (loss, dx, dw, db) in wanted.items():
        parts = [found[name] for found, *_ in ranks]
        for part in parts:
            torch.testing.assert_close(part[0], loss, rtol=NEAR, atol=NEAR)
        if name == "logits":  # whose products are PyTorch's, a share on each rank
            torch.testing.assert_close(parts[0][1] + parts[1][1], dx, rtol=NEAR, atol=NEAR)
        else:
            assert torch.equal(parts[0][1], parts[1][1])
            torch.testing.assert_close(parts[0][1], dx, rtol=NEAR, atol=NEAR)
        torch.testing.assert_close(torch.cat([p[2] for p in parts]), dw, rtol=NEAR, atol=NEAR)
        torch.testing.assert_close(torch.cat([p[3] for p in parts]), db, rtol=NEAR, atol=NEAR)
    z = torch.cat([(x @ w.t())[..., :4], (x @ w.t())[..., 7:]], -1)
    for _, liger, _ in ranks:
        torch.testing.assert_close(liger, ops.cross_entropy(z, target.clamp(max=7), reduction="none"))
    if ON_MODEL:
        return
    tensors, indices = expert_inputs()
    x, weights, gate, up, down = (t.requires_grad_() for t in tensors)
    y = ops.moe(x, torch.cat([gate, up], 1), down, indices, weights)
    y.square().sum().backward()
    for i, whole in enumerate([y.detach(), *(t.grad for t in tensors)]):
        torch.testing.assert_close(torch.cat([of_rank[2][i] for of_rank in ranks]), whole, rtol=NEAR, atol=NEAR)
