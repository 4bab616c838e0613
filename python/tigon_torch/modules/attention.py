"""Multi-token and neighborhood attention."""
import math

import torch
from torch import Tensor, nn

from .. import ops
from ..arguments import refuse


class MultiTokenAttention(nn.Module):
    """A convolution of attention's probabilities over queries and keys, with a causal mask before and after; it takes
    scores [batch, heads, len, len]. Parameters are those of nn.Conv2d."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size, stride=1, padding=0, dilation=1,
                 groups: int = 1, bias: bool = True, sparse: bool = False):
        super().__init__()
        taps = kernel_size if isinstance(kernel_size, (tuple, list)) else (kernel_size,) * 2
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, tuple(taps)
        self.stride, self.padding, self.dilation, self.groups, self.sparse = stride, padding, dilation, groups, sparse
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels // groups, *taps))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, scores: Tensor) -> Tensor:
        return ops.multi_token_attention(scores, self.weight, self.bias, self.stride, self.padding, self.dilation,
                                         self.groups, self.sparse)

    def extra_repr(self) -> str:
        return (f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
                f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, sparse={self.sparse}")


class NeighborhoodAttention(nn.Module):
    """Projections around attention of every token to kernel_size tokens near it."""

    def __init__(self, hidden_size: int, num_heads: int, kernel_size: int = 7, dilation: int = 1, bias: bool = True,
                 dropout: float = 0.0, scale: float | None = None):
        super().__init__()
        name = type(self).__name__
        if hidden_size % num_heads != 0:
            refuse(name, "hidden_size", hidden_size, f"a multiple of the {num_heads} heads")
        if kernel_size < 1 or kernel_size % 2 == 0:
            refuse(name, "kernel_size", kernel_size, "an odd number of at least 1")
        if dilation < 1:
            refuse(name, "dilation", dilation, "at least 1")
        self.hidden_size, self.num_heads, self.head_dim = hidden_size, num_heads, hidden_size // num_heads
        self.kernel_size, self.dilation, self.scale = kernel_size, dilation, scale
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else None

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None:
            raise NotImplementedError("tigon: NeighborhoodAttention: an attention_mask was given; expected None")
        q, k, v = (layer(hidden_states).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
                   for layer in (self.q_proj, self.k_proj, self.v_proj))
        o = ops.neighborhood_attention(q, k, v, self.kernel_size, self.dilation, self.scale)
        o = o.transpose(1, 2).flatten(2)
        return self.out_proj(o if self.dropout is None else self.dropout(o))

    def extra_repr(self) -> str:
        return (f"{self.hidden_size}, num_heads={self.num_heads}, kernel_size={self.kernel_size}, "
                f"dilation={self.dilation}")


class NeighborhoodAttentionLayer(nn.Module):
    """x + NeighborhoodAttention(layer_norm(x))"""

    def __init__(self, hidden_size: int, num_heads: int, kernel_size: int = 7, dilation: int = 1, bias: bool = True,
                 dropout: float = 0.0, layer_norm_eps: float = 1e-5, scale: float | None = None):
        super().__init__()
        self.attention = NeighborhoodAttention(hidden_size, num_heads, kernel_size, dilation, bias, dropout, scale)
        self.layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else None

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        norm = self.layer_norm
        y = self.attention(ops.layer_norm(hidden_states, norm.weight, norm.bias, norm.eps), attention_mask)
        return hidden_states + (y if self.dropout is None else self.dropout(y))
