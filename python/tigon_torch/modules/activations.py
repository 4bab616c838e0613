"""Activations and embedding."""
from torch import Tensor, nn

from .. import ops


class Softmax(nn.Module):
    """Over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmax(x)


class Sparsemax(nn.Module):
    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return ops.sparsemax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class ReLUSquared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ops.relu_squared(x)


class Embedding(nn.Embedding):
    """nn.Embedding without max_norm, scale_grad_by_freq and sparse gradients; that of its weight has the same bits in
    every run."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, device=None, dtype=None):
        super().__init__(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)

    def forward(self, indices: Tensor) -> Tensor:
        return ops.embedding(self.weight, indices, self.padding_idx)
