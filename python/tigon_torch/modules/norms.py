"""Norms."""
import torch
from torch import Tensor, nn

from .. import ops
from ..arguments import one_of

_INIT = {"ones": torch.ones, "zeros": torch.zeros}


class RMSNorm(nn.Module):
    """rms_norm with a weight, as Llama, Mistral, Qwen, OLMo 2 and GLM-4 have it; loads their norms, and torch's.

    init: "ones" or "zeros". elementwise_affine=False: no weight.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6, offset: float = 0.0, casting: str = "llama",
                 init: str = "ones", elementwise_affine: bool = True, device=None, dtype=None):
        super().__init__()
        self.hidden_size, self.variance_epsilon, self.offset, self.casting = hidden_size, eps, offset, casting
        make = one_of(_INIT, type(self).__name__, "init", init)
        self.weight = nn.Parameter(make(hidden_size, device=device, dtype=dtype)) if elementwise_affine else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.rms_norm(hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.variance_epsilon}, offset={self.offset}, casting={self.casting!r}"


class RMSNormForGemma(RMSNorm):
    """With a weight that is stored minus 1, in Gemma's order of roundings."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, offset: float = 1.0, casting: str = "gemma",
                 init: str = "zeros", device=None, dtype=None):
        super().__init__(hidden_size, eps, offset, casting, init, device=device, dtype=dtype)


class FusedAddRMSNorm(RMSNorm):
    """(rms_norm(x + residual), x + residual)"""

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return ops.fused_add_rms_norm(hidden_states, residual, self.weight, self.variance_epsilon, self.offset, self.casting)


class ModulatedRMSNorm(RMSNorm):
    """rms_norm(x) * (1 + scale) + shift; scale and shift as of ops.modulated_rms_norm."""

    def forward(self, hidden_states: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        return ops.modulated_rms_norm(hidden_states, self.weight, scale, shift, self.variance_epsilon, self.offset, self.casting)


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm over the last axis."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
                 device=None, dtype=None):
        super().__init__(hidden_size, eps, elementwise_affine, bias, device=device, dtype=dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.layer_norm(hidden_states, self.weight, self.bias, self.eps)


class GroupNorm(nn.GroupNorm):
    """nn.GroupNorm."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.group_norm(hidden_states, self.num_groups, self.weight, self.bias, self.eps)


class PolyNorm(nn.Module):
    """weight[0] norm(x^3) + weight[1] norm(x^2) + weight[2] norm(x) + bias"""

    def __init__(self, eps: float = 1e-6, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1 / 3, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.ones((), device=device, dtype=dtype))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.poly_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)

    def extra_repr(self) -> str:
        return f"eps={self.variance_epsilon}"


class DyT(nn.Module):
    """gamma * tanh(alpha * x) + beta, which takes the place of a norm; beta=False: without beta."""

    def __init__(self, hidden_size: int, beta: bool = True, init_alpha: float = 0.5, device=None, dtype=None):
        super().__init__()
        self.hidden_size, self.init_alpha = hidden_size, init_alpha
        self.alpha = nn.Parameter(torch.full((1,), init_alpha, device=device, dtype=dtype))
        self.gamma = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype)) if beta else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.dyt(x, self.alpha, self.gamma, self.beta)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, init_alpha={self.init_alpha}, beta={self.beta is not None}"
