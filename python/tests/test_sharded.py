"""Models and tensors that are split over two processes, beside those of one: FSDP2, DTensor and tensor parallelism."""
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import batch, build, error
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import tigon_torch
from tigon_torch import ops

transformers = pytest.importorskip("transformers")
STEPS = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(one_rank, (str(folder), port), nprocs=2)
    return [torch.load(folder / str(rank)) for rank in (0, 1)]


def one_rank(rank, folder, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.save({"fsdp": fsdp(rank), "dtensors": dtensors(rank)}, os.path.join(folder, str(rank)))
    dist.destroy_process_group()


def train(model, rows):
    """Losses and what the weights are after a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        both = batch(seed=step, rows=4, ignored=False)
        loss = model(**{name: t[rows] for name, t in both.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


KINDS = {"layers": ("llama", False), "head": ("qwen3", True), "capped head": ("gemma2", True)}


def fsdp(rank):
    """Of each kind: losses, weights, and what the head was between steps and while the loss was made."""
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for kind, (family, of_head) in KINDS.items():
        model = build(family, **({"tie_word_embeddings": False} if of_head else {}))
        report = tigon_torch.apply(model, linear=False)
        assert report.replaced["fused_linear_cross_entropy"] == 1
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        if of_head:
            fully_shard(model.lm_head, mesh=mesh)
        fully_shard(model, mesh=mesh)
        seen = []
        own = ops.fused_linear_cross_entropy

        def looked(x, weight, *args, **kwargs):
            seen.append(type(weight) is not DTensor and tuple(weight.shape) == (model.config.vocab_size, x.shape[-1]))
            result = own(x, weight, *args, **kwargs)
            return result

        ops.fused_linear_cross_entropy = looked
        losses = train(model, slice(2 * rank, 2 * rank + 2))
        again = model(**batch(rows=2)).loss  # without backward: the head's parts are what is left of it
        ops.fused_linear_cross_entropy = own
        apart = isinstance(model.lm_head.weight, DTensor) if of_head else None
        weights = {name: p.full_tensor().detach() for name, p in model.state_dict().items() if isinstance(p, DTensor)}
        found[kind] = losses, weights, seen, apart, again.detach()
    model = build("qwen3", tie_word_embeddings=False)
    tigon_torch.apply(model, linear=False)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for part in (*model.model.layers, model.lm_head, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    found["bf16"] = train(model, slice(2 * rank, 2 * rank + 2))
    return found


def test_fsdp(ranks):
    """Half of each batch on each of two processes: the losses' mean and the weights after SGD are those of one process
    (f32: 1e-5 of the step). A head that is sharded by itself is whole in its loss alone, and no logits are made."""
    ranks = [rank["fsdp"] for rank in ranks]
    for kind, (family, of_head) in KINDS.items():
        model = build(family, **({"tie_word_embeddings": False} if of_head else {}))
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        expected = train(model, slice(None))
        for losses, weights, seen, apart, _ in (rank[kind] for rank in ranks):
            assert seen == [True] * (STEPS + 1) and apart in (None, True), kind
            for name, p in model.named_parameters():
                far = (p - start[name]).norm()
                assert (weights[name] - p).norm() <= 1e-5 * far + 1e-7, (kind, name)
        for one, two, whole in zip(ranks[0][kind][0], ranks[1][kind][0], expected):
            assert error((one + two) / 2, whole) <= 1e-6, kind
        if kind == "head":
            for one, two, whole in zip(ranks[0]["bf16"], ranks[1]["bf16"], expected):
                assert (one + two).item() / 2 == pytest.approx(whole.item(), rel=0.02)


def of_rows(x, r, w, b, gate, up):
    """Norms and gates of rows."""
    y, total = ops.fused_add_rms_norm(x, r, w)
    return {"rms_norm": ops.rms_norm(x, w), "fused_add": y, "sum": total, "layer_norm": ops.layer_norm(x, w, b),
            "dyt": ops.dyt(x, w[:1], w, b), "swiglu": ops.swiglu(gate, up), "geglu": ops.geglu(gate, up),
            "relu_squared": ops.relu_squared(gate), "softmax": ops.softmax(gate)}


def of_losses(x, w, b, target):
    nll, entropy = ops.fused_linear_scaled_cross_entropy(x, w, target, b, 0.8, return_entropy=True)
    return {"logits": ops.cross_entropy(torch.nn.functional.linear(x, w), target, label_smoothing=0.1),
            "mean": ops.fused_linear_cross_entropy(x, w, target, b, z_loss=0.1),
            "none": ops.fused_linear_cross_entropy(x, w, target, b, softcap=3.0, reduction="none"),
            "nll": nll, "entropy": entropy, "logprobs": ops.logprobs(x, w, target, b, 0.8)}


def tensors():
    g = torch.Generator().manual_seed(5)
    x, r, w, b, gate, up, head, bias = (torch.randn(*s, generator=g, dtype=torch.float64) for s in (
        (2, 5, 8), (2, 5, 8), (8,), (8,), (2, 5, 6), (2, 5, 6), (11, 8), (11,)))
    target = torch.randint(0, 11, (2, 5), generator=g)
    target[1, 2] = -100
    return (x, r, w, b, gate, up), (x, head, bias), target


def results_of(function, given):
    """Every result, and the gradients of the sum of its squares."""
    found = {}
    for name in function(*given):
        leaves = [t.detach().requires_grad_() for t in given]
        y = function(*leaves)[name]
        y.square().sum().backward()
        found[name] = [whole(y.detach()), *(None if t.grad is None else whole(t.grad) for t in leaves)]
    return found


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def dtensors(rank):
    """By placements: the results and gradients of each function, gathered."""
    mesh = init_device_mesh("cpu", (2,))
    rows, layer, target = tensors()
    found = {}
    for name, of_x, of_gate, of_w in (("tokens", Shard(1), Shard(1), Replicate()), ("batch", Shard(0), Shard(0), Shard(0)),
                                      ("columns", Shard(2), Shard(2), Replicate())):
        placed = [distribute_tensor(t, mesh, [p]) for t, p in zip(rows, (of_x, of_x, of_w, of_w, of_gate, of_gate))]
        found[name] = results_of(of_rows, placed)
        y = ops.swiglu(*placed[4:])
        assert y.placements == (of_gate,) and ops.rms_norm(placed[0], placed[2]).shape == rows[0].shape
    x, w, b = (distribute_tensor(t, mesh, [p]) for t, p in zip(layer, (Replicate(), Shard(0), Shard(0))))
    labels = distribute_tensor(target, mesh, [Replicate()])
    found["vocabulary"] = results_of(lambda x, w, b: of_losses(x, w, b, labels), (x, w, b))
    w, b = (distribute_tensor(t, mesh, [Replicate()]) for t in layer[1:])
    x, w = distribute_tensor(layer[0], mesh, [Shard(1)]), distribute_tensor(layer[1], mesh, [Shard(1)])
    found["gathered"] = results_of(lambda x, w, b: of_losses(x, w, b, labels), (x, w, b))
    with pytest.raises(ValueError, match=r"bias is placed as \(Replicate\(\),\); expected one Shard\(0\)"):
        ops.fused_linear_cross_entropy(x, distribute_tensor(layer[1], mesh, [Shard(0)]), labels, b)
    with pytest.raises(ValueError, match="x is a plain tensor; expected a DTensor, as weight"):
        ops.fused_linear_cross_entropy(layer[0], distribute_tensor(layer[1], mesh, [Shard(0)]), target)
    w = distribute_tensor(layer[1], mesh, [Shard(0)])
    with pytest.raises(ValueError, match="class_weight is given; expected none, where the vocabulary is split"):
        ops.fused_linear_cross_entropy(x, w, labels, class_weight=torch.ones(11, dtype=torch.float64))
    return found


def test_dtensors(ranks):
    """Norms, gates and losses of DTensors, results and gradients in f64, are those of one process."""
    ranks = [rank["dtensors"] for rank in ranks]
    rows, layer, target = tensors()
    expected = {name: results_of(of_rows, rows) for name in ("tokens", "batch", "columns")}
    expected |= dict.fromkeys(("vocabulary", "gathered"), results_of(lambda x, w, b: of_losses(x, w, b, target), layer))
    for rank in ranks:
        for kind, functions in expected.items():
            for name, values in functions.items():
                for i, (actual, wanted) in enumerate(zip(rank[kind][name], values)):
                    assert (actual is None) == (wanted is None), (kind, name, i)
                    if wanted is not None:
                        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12, msg=f"{kind} {name} {i}")


def test_deepspeed_is_refused():
    """ZeRO-3 marks the parameters that it has partitioned by such an attribute."""
    model = build("llama")
    model.model.norm.weight.ds_id = 0
    with pytest.raises(ValueError, match="the weights are partitioned by DeepSpeed ZeRO-3; expected whole ones"):
        tigon_torch.apply(model)
