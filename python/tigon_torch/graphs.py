"""A training step of one shape as a CUDA graph: forward and backward are recorded once, and replayed from then on."""
from __future__ import annotations

import gc

import torch
from torch import Tensor, nn

from .arguments import refuse

_OP = "graphed_step"


def _expect_model(model) -> torch.device:
    """The GPU of a model, or a refusal."""
    if not isinstance(model, nn.Module):
        refuse(_OP, "model", f"of {type(model).__name__}", "a module")
    for module in model.modules():
        # By names: these classes are in parts of PyTorch that may not be there.
        if {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"} & {c.__name__ for c in type(module).__mro__}:
            refuse(_OP, "model", "split over processes", "a model of one process")
        if getattr(module, "gradient_checkpointing", False) and module.training:
            refuse(_OP, "model", "one with gradient checkpointing", "a model without it, because it reads random states")
    devices = {p.device for p in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        where = " and ".join(sorted(map(str, devices))) or "no device"
        refuse(_OP, "model", f"on {where}", "one GPU")
    return devices.pop()


def _shape(t: Tensor) -> str:
    return f"{' x '.join(map(str, t.shape)) or 'a number'} of {str(t.dtype)[6:]}"


class GraphedStep:
    """What graphed_step() returns: step(batch) -> loss."""

    def __init__(self, model, optimizer, batch):
        self.device = _expect_model(model)
        self.model, self.optimizer = model, optimizer
        self.batch = {name: t.to(self.device, copy=True) if isinstance(t, Tensor) else t for name, t in batch.items()}
        self._warm_up()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        for p in self.parameters:
            p.grad = None  # so that backward makes those of the graph
        gc.collect()
        torch.cuda.empty_cache()
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph):
                self.loss = self._forward_and_backward().detach()
        except Exception as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RuntimeError(f"tigon: {_OP}: the step cannot be captured in a CUDA graph ({why}); expected a model that "
                               "does not wait for the GPU: attention_mask left out where nothing is padded") from error
        self.gradients = [p.grad for p in self.parameters]

    def _warm_up(self) -> None:
        """What is made at a first call (plans of cuBLAS, memory for reports) is no part of a graph."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._forward_and_backward()
        torch.cuda.current_stream(self.device).wait_stream(stream)

    def _forward_and_backward(self) -> Tensor:
        out = self.model(**self.batch)
        loss = out if isinstance(out, Tensor) else getattr(out, "loss", None)
        if loss is None:
            raise ValueError(f"tigon: {_OP}: the model made no loss; expected labels in the batch")
        loss.backward()
        return loss

    def _take(self, batch) -> None:
        if set(batch) != set(self.batch):
            refuse(_OP, "batch", "of " + ", ".join(batch), "of " + ", ".join(self.batch) + ", as the graph was made of")
        for name, held in self.batch.items():
            t = batch[name]
            if not isinstance(held, Tensor):
                if t != held:
                    refuse(_OP, name, repr(t), f"{held!r}, as the graph was made of")
            elif not isinstance(t, Tensor) or t.shape != held.shape or t.dtype != held.dtype:
                came = _shape(t) if isinstance(t, Tensor) else f"of {type(t).__name__}"
                refuse(_OP, name, came, f"{_shape(held)}, as the graph was made of")
        for name, held in self.batch.items():
            if isinstance(held, Tensor) and batch[name] is not held:
                held.copy_(batch[name], non_blocking=True)

    def __call__(self, batch) -> Tensor:
        """The loss of a batch, after a step of the optimizer. The gradients stay in the parameters until the next call."""
        self._take(batch)
        self.graph.replay()
        for p, g in zip(self.parameters, self.gradients):  # the optimizer's zero_grad() may have taken them away
            p.grad = g
        if self.optimizer is not None:
            self.optimizer.step()
        return self.loss.clone()


def graphed_step(model, optimizer, batch) -> GraphedStep:
    """A training step of batches of one shape, whose forward and backward are a CUDA graph:

        step = tigon_torch.graphed_step(model, optimizer, batch)
        for batch in loader:
            loss = step(batch)

    batch: the arguments of the model by name, labels among them, tensors on any device; it gives the shapes, and is not
    trained on. optimizer: any of PyTorch's, whose step() runs behind the graph, or None, where the caller steps: then
    gradients can be clipped or looked at before. They are those of one batch; zero_grad() is not needed, and nothing is
    accumulated. A scheduler of learning rates works as without a graph.

    The graph keeps the memory of a step. What is random in it (dropout) is new at each replay. Changes of the model after
    this call, other than of its weights' values, are not seen.

    Raises ValueError for a model that is not on one GPU, is split over processes or checkpoints gradients, for a model
    without a loss, and for a batch of another shape; RuntimeError where the step cannot be captured, because something
    in it waits for the GPU, as a mask of padding does.
    """
    return GraphedStep(model, optimizer, batch)
