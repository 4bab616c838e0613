"""graphed_step without a GPU: what it refuses, and what it does around a graph. The graph is a stand-in that runs forward
and backward again into the same memory, as a replay does; gpu.py has the real one."""
import contextlib

import pytest
import torch
from torch import nn

import tigon_torch
from tigon_torch import graphs


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x, target=None, scale=1.0):
        return nn.functional.mse_loss(self.layer(x) * scale, target) if target is not None else None


class StandIn:
    """Of torch.cuda.CUDAGraph, for the step that is being made."""
    step = None

    def replay(self):
        step, gradients = StandIn.step, StandIn.step.gradients
        for p in step.parameters:
            p.grad = None
        loss = step._forward_and_backward()
        for p, g in zip(step.parameters, gradients):
            g.copy_(p.grad)
            p.grad = None  # the graph knows its own memory alone
        step.loss.copy_(loss.detach())


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(graphs, "_expect_model", lambda model: torch.device("cpu"))

    class Stream:
        def __init__(self, *_):
            pass

        def wait_stream(self, other):
            pass

    made = graphs.GraphedStep._warm_up

    def warm_up(self):
        StandIn.step = self
        made(self)

    monkeypatch.setattr(graphs.GraphedStep, "_warm_up", warm_up)
    for name, value in (("Stream", Stream), ("current_stream", Stream), ("empty_cache", lambda: None),
                        ("stream", lambda s: contextlib.nullcontext()), ("CUDAGraph", StandIn),
                        ("graph", lambda g: contextlib.nullcontext())):
        monkeypatch.setattr(torch.cuda, name, value)


def batches(count):
    torch.manual_seed(3)
    return [{"x": torch.randn(4, 5), "target": torch.randn(4, 3)} for _ in range(count)]


def trained(steps, make):
    """Losses and weights after some steps by make(model, optimizer, first batch)."""
    torch.manual_seed(0)
    model = Model()
    optimizer = tigon_torch.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    data, losses = batches(steps), []
    step = make(model, optimizer, data[0])
    for batch in data:
        losses.append(step(batch).item())
        scheduler.step()
    return losses, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("zeroed", [False, True])
def test_trains_as_without_a_graph(without_gpu, zeroed):
    def plain(model, optimizer, _):
        def step(batch):
            optimizer.zero_grad()
            loss = model(**batch)
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step

    def graphed(model, optimizer, batch):
        step = tigon_torch.graphed_step(model, optimizer, batch)

        def one(batch):
            if zeroed:
                optimizer.zero_grad()
            return step(batch)
        return one

    (losses, weights), (wanted, of) = trained(6, graphed), trained(6, plain)
    assert losses == wanted and len(set(losses)) == 6
    assert all(torch.equal(a, b) for a, b in zip(weights, of))


def test_without_an_optimizer_the_caller_steps(without_gpu):
    model, (first, second) = Model(), batches(2)
    step = tigon_torch.graphed_step(model, None, first)
    before = model.layer.weight.detach().clone()
    loss = step(second)
    assert torch.equal(before, model.layer.weight)
    wanted = torch.autograd.grad(model(**second), model.layer.weight)[0]
    assert torch.equal(model.layer.weight.grad, wanted) and loss == model(**second)
    kept = loss.clone()
    step(first)
    assert torch.equal(loss, kept)  # a loss is the caller's


def test_batches_of_another_form(without_gpu):
    model, (batch,) = Model(), batches(1)
    step = tigon_torch.graphed_step(model, None, {**batch, "scale": 1.0})
    for wrong, sentence in (
            (batch, "batch is of x, target; expected of x, target, scale, as the graph was made of"),
            ({**batch, "scale": 2.0}, "scale is 2.0; expected 1.0, as"),
            ({**batch, "scale": 1.0, "x": batch["x"][:2]}, "x is 2 x 5 of float32; expected 4 x 5 of float32, as"),
            ({**batch, "scale": 1.0, "x": batch["x"].double()}, "x is 4 x 5 of float64; expected 4 x 5 of float32, as"),
            ({**batch, "scale": 1.0, "x": [1]}, "x is of list; expected 4 x 5 of float32, as")):
        held = step.batch["target"].clone()
        with pytest.raises(ValueError, match=f"^tigon: graphed_step: {sentence}"):
            step({**wrong, "target": wrong["target"] + 1})
        assert torch.equal(step.batch["target"], held)  # nothing was taken
    with pytest.raises(ValueError, match="^tigon: graphed_step: the model made no loss; expected labels in the batch$"):
        tigon_torch.graphed_step(model, None, {"x": batch["x"]})


def test_what_cannot_be_captured(without_gpu, monkeypatch):
    @contextlib.contextmanager
    def fails(graph):
        yield
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    monkeypatch.setattr(torch.cuda, "graph", fails)
    with pytest.raises(RuntimeError, match=r"^tigon: graphed_step: the step cannot be captured in a CUDA graph \(operation "
                                           r"not permitted when stream is capturing\); expected a model that does not wait"):
        tigon_torch.graphed_step(Model(), None, batches(1)[0])


def test_models_that_are_refused():
    batch = batches(1)[0]
    checkpointed = Model().train()
    checkpointed.layer.gradient_checkpointing = True

    class DistributedDataParallel(Model):
        pass

    for model, sentence in ((Model(), "model is on cpu; expected one GPU"),
                            (None, "model is of NoneType; expected a module"),
                            (checkpointed, "model is one with gradient checkpointing; expected a model without it"),
                            (nn.Sequential(DistributedDataParallel()), "model is split over processes; expected a model of")):
        with pytest.raises(ValueError, match=f"^tigon: graphed_step: {sentence}"):
            tigon_torch.graphed_step(model, None, batch)
