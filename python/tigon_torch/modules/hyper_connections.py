"""Hyper-connections around a layer."""
import torch
from torch import Tensor, nn

from .. import ops
from ..arguments import refuse


class MHC(nn.Module):
    """Manifold-constrained hyper-connections around a layer [..., c] -> [..., c]: x and the result are [..., hc, c], hc
    streams of which the layer's input is a sum, and to which its output is added."""

    def __init__(self, layer: nn.Module, *, hc: int, c: int, tmax: int = 20, rms_eps: float = 1e-6,
                 pre_eps: float = 0.0, sinkhorn_eps: float = 1e-6, post_mult: float = 2.0,
                 phi_dtype: torch.dtype = torch.float32):
        super().__init__()
        self.layer, self.hc, self.c = layer, hc, c
        self.options = {"tmax": tmax, "rms_eps": rms_eps, "pre_eps": pre_eps, "sinkhorn_eps": sinkhorn_eps,
                        "post_mult": post_mult}
        columns = hc * hc + 2 * hc
        self.phi = nn.Parameter((torch.randn(hc * c, columns) * 0.02).to(phi_dtype))
        self.b = nn.Parameter(torch.zeros(columns))
        self.alpha_pre, self.alpha_post, self.alpha_res = (nn.Parameter(torch.ones(())) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.hc, self.c):
            refuse("MHC", "x", f"of shape {tuple(x.shape)}", f"... x {self.hc} x {self.c}")
        return ops.mhc_forward(x, self.layer, self.phi, self.b, self.alpha_pre, self.alpha_post, self.alpha_res,
                               **self.options)

    def extra_repr(self) -> str:
        return f"hc={self.hc}, c={self.c}, " + ", ".join(f"{k}={v}" for k, v in self.options.items())
