"""Softmax, sparsemax, squared ReLU, embedding."""
from torch import Tensor

from ..arguments import checked, expect_dims, refuse, whole
from ..declared import like, operator
from ..dtensors import by_rows
from .common import _ops

operator("softmax(Tensor x, float scale) -> y", lambda x, scale: like(x), keeps="y", gradients="x=y")
operator("sparsemax(Tensor x) -> y", like, keeps="y", gradients="x=y")
operator("relu_squared(Tensor x) -> y", like, keeps="x", gradients="x")
operator("embedding(Tensor weight, Tensor ids, int padding_idx) -> y",
         lambda weight, ids, padding_idx: weight.new_empty((*ids.shape, weight.shape[1])), keeps="ids",
         gradients="weight")


@by_rows("x")
@checked
def softmax(x: Tensor, scale: float = 1.0) -> Tensor:
    """exp(scale * x) over the last axis, divided by its sum, in the type of x. scale is above 0."""
    return _ops.softmax(x, scale)


@checked
def sparsemax(x: Tensor, dim: int = -1) -> Tensor:
    """The point of the probability simplex along dim that is nearest to x: most of it are zeros."""
    if not -x.dim() <= dim < x.dim():
        refuse("sparsemax", "dim", dim, f"an axis of {x.dim()}")
    dim %= x.dim()
    outer, inner = x.shape[:dim].numel(), x.shape[dim + 1 :].numel()
    return _ops.sparsemax(x.reshape(outer, x.shape[dim], inner)).view(x.shape)


@by_rows("x", columns=True)
@checked
def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2 in the type of x."""
    return _ops.relu_squared(x)


@checked
def embedding(weight: Tensor, ids: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight [vocab, hidden] for ids [...], as torch.nn.functional.embedding(ids, weight).

    The gradient of weight is a sum in a fixed order: the same bits in every run. The row of padding_idx gets no
    gradient.
    """
    expect_dims("embedding", "weight", weight, 2)
    if padding_idx is not None:
        vocab = weight.shape[0]
        if not -vocab <= whole("embedding", "padding_idx", padding_idx) < vocab:
            refuse("embedding", "padding_idx", padding_idx, f"a row of {vocab}")
        padding_idx %= vocab
    return _ops.embedding(weight, ids, -1 if padding_idx is None else padding_idx)
