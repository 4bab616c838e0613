"""Connections over depth: attention residuals and hyper-connections."""
import torch
from torch import Tensor

from ..arguments import checked, expect_shape, refuse, whole
from ..declared import like, operator, sums
from .common import _ops

operator("attn_res(Tensor v, Tensor w_query, Tensor w_norm, float eps) -> y alpha rstd",
         lambda v, *_: (v.new_empty(v.shape[1:]), sums(v, v.shape[0] * v.shape[1]), sums(v, v.shape[0] * v.shape[1])),
         keeps="v w_query w_norm alpha rstd", gradients="v! w_query w_norm")
operator("mhc_coeffs(Tensor x, Tensor phi, Tensor b, Tensor alpha, int streams, int tmax, float rms_eps, float pre_eps,"
         " float sinkhorn_eps, float post_mult) -> h_pre h_post h_res mix rstd",
         lambda x, phi, b, alpha, n, *_: (
             *(sums(x, *x.shape[:-1], k) for k in (n, n, n * n, n * n + 2 * n)), sums(x, x.shape[:-1].numel())),
         keeps="x phi b alpha mix rstd", gradients="x phi b alpha", upstream="h_pre h_post h_res")
operator("mhc_pre(Tensor x, Tensor h_pre) -> y",
         lambda x, h_pre: x.new_empty((*x.shape[:-1], x.shape[-1] // max(h_pre.shape[-1], 1))), keeps="x h_pre",
         gradients="x h_pre")
operator("mhc_post_res(Tensor x, Tensor f, Tensor h_post, Tensor h_res) -> y", lambda x, *_: like(x),
         keeps="x f h_post h_res", gradients="x f h_post h_res")


@checked
def attn_res(v, w_query: Tensor, w_norm: Tensor, eps: float = 1e-6) -> Tensor:
    """Attention residuals: every token's weighted mean of the outputs of N blocks, v [N, ..., hidden] or a list of N
    tensors; softmax over the blocks of w_query . (rms_norm(v, w_norm))."""
    if isinstance(v, (list, tuple)):
        v = torch.stack(list(v))
    if not isinstance(v, Tensor) or v.dim() < 2:
        refuse("attn_res", "v", f"of type {type(v).__name__}", "blocks x ... x hidden, or a list of tensors")
    y = _ops.attn_res(v.reshape(v.shape[0], -1, v.shape[-1]), w_query, w_norm, eps)[0]
    return y.view(v.shape[1:])


def _streams(op, x, **coefficients):
    if x.dim() < 2:
        refuse(op, "x", f"of {x.dim()} dimensions", "streams and channels, the last two")
    for name, (t, *shape) in coefficients.items():
        expect_shape(op, name, t, (*x.shape[:-2], *shape))
    return x.shape[-2]


@checked
def mhc_coeffs(x: Tensor, phi: Tensor, b: Tensor, alpha_pre: Tensor, alpha_post: Tensor, alpha_res: Tensor,
               tmax: int = 20, rms_eps: float = 1e-6, pre_eps: float = 0.0, sinkhorn_eps: float = 1e-6,
               post_mult: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of manifold-constrained hyper-connections of x [..., n, channels]: (h_pre [..., n], h_post [..., n],
    h_res [..., n, n]) in f32 (f64 for f64), from phi [n * channels, 2 n + n^2], b [2 n + n^2] and three numbers.

    h_res is doubly stochastic, after tmax steps of Sinkhorn's iteration.
    """
    n = _streams("mhc_coeffs", x)
    whole("mhc_coeffs", "tmax", tmax, 1)
    alpha = torch.cat([a.reshape(1) for a in (alpha_pre, alpha_post, alpha_res)])
    h_pre, h_post, h_res = _ops.mhc_coeffs(x.flatten(-2), phi, b, alpha, n, tmax, rms_eps, pre_eps, sinkhorn_eps,
                                           post_mult)[:3]
    return h_pre, h_post, h_res.unflatten(-1, (n, n))


@checked
def mhc_pre(x: Tensor, h_pre: Tensor) -> Tensor:
    """The input of a layer: sum over the streams of h_pre [..., n] * x [..., n, channels]."""
    _streams("mhc_pre", x, h_pre=(h_pre, x.shape[-2] if x.dim() > 1 else 0))
    return _ops.mhc_pre(x.flatten(-2), h_pre)


@checked
def mhc_post_res(x: Tensor, f_out: Tensor, h_post: Tensor, h_res: Tensor) -> Tensor:
    """The streams after a layer: h_res [..., n, n] x + h_post [..., n] f_out, f_out [..., channels]."""
    n = x.shape[-2] if x.dim() > 1 else 0
    _streams("mhc_post_res", x, f_out=(f_out, x.shape[-1] if x.dim() else 0), h_post=(h_post, n), h_res=(h_res, n, n))
    return _ops.mhc_post_res(x.flatten(-2), f_out.to(x.dtype), h_post, h_res.flatten(-2)).view(x.shape)


def mhc_apply(x: Tensor, f_out: Tensor, h_pre: Tensor, h_post: Tensor, h_res: Tensor, return_x_in: bool = False):
    """mhc_post_res of x and what a layer made of mhc_pre(x, h_pre); with return_x_in that input, too."""
    y = mhc_post_res(x, f_out, h_post, h_res)
    return (y, mhc_pre(x, h_pre)) if return_x_in else y


def mhc_forward(x: Tensor, layer, phi: Tensor, b: Tensor, alpha_pre: Tensor, alpha_post: Tensor, alpha_res: Tensor,
                return_coeffs: bool = False, **options):
    """Hyper-connections around a layer: mhc_coeffs, mhc_pre, the layer in the type of its parameters, mhc_post_res.
    Further options are those of mhc_coeffs."""
    h_pre, h_post, h_res = mhc_coeffs(x, phi, b, alpha_pre, alpha_post, alpha_res, **options)
    x_in = mhc_pre(x, h_pre)
    of_layer = next((p.dtype for p in layer.parameters()), x_in.dtype) if isinstance(layer, torch.nn.Module) else x_in.dtype
    y = mhc_post_res(x, layer(x_in.to(of_layer)), h_post, h_res)
    return (y, (h_pre, h_post, h_res)) if return_coeffs else y
