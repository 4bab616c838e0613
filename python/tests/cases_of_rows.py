"""Operators on rows that are declared in Python: activations and norms."""
import torch
import torch.nn.functional as F

from case import Case
from tigon_torch import ops

IDS = torch.tensor([[3, 0, 3, 5], [0, 6, 3, 1]])


def norm(u, eps):
    return u * torch.rsqrt(u.square().mean(-1, keepdim=True) + eps)


def poly_formula(x, w, b):
    return w[0] * norm(x**3, 1e-6) + w[1] * norm(x**2, 1e-6) + w[2] * norm(x, 1e-6) + b


def modulated_formula(x, w, scale, shift, offset=0.0):
    scale, shift = (t if t.shape == x.shape else t.reshape(-1, 1, t.shape[-1]) for t in (scale, shift))
    return norm(x, 1e-6) * (offset + w) * (1 + scale) + shift


def sparsemax_formula(x, dim):
    z, _ = x.sort(dim, descending=True)
    n = torch.arange(1, x.shape[dim] + 1).reshape([-1] + [1] * (x.dim() - 1 - dim % x.dim()))
    tau = (z.cumsum(dim) - 1) / n
    size = (z > tau).sum(dim, keepdim=True)
    return (x - tau.gather(dim, size - 1)).clamp(min=0)


ROW_CASES = {
    "softmax": Case(ops.softmax, lambda x: x.softmax(-1), (3, 5, 17)),
    "softmax_scaled": Case(lambda x: ops.softmax(x, 0.25), lambda x: (x / 4).softmax(-1), (3, 5, 17)),
    "sparsemax": Case(ops.sparsemax, lambda x: sparsemax_formula(x, -1), (3, 5, 17)),
    "sparsemax_axis": Case(lambda x: ops.sparsemax(x, 1), lambda x: sparsemax_formula(x, 1), (3, 5, 17)),
    "relu_squared": Case(ops.relu_squared, lambda x: F.relu(x).square(), (3, 5, 17)),
    "embedding": Case(lambda w: ops.embedding(w, IDS), lambda w: F.embedding(IDS, w), (7, 9)),
    "embedding_padding": Case(lambda w: ops.embedding(w, IDS, -1),
                              lambda w: F.embedding(IDS, w, 6), (7, 9)),
    "group_norm": Case(lambda x, w, b: ops.group_norm(x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b),
                       (3, 4, 5, 7), (4,), (4,)),
    "group_norm_bare": Case(lambda x: ops.group_norm(x, 2, eps=1e-3), lambda x: F.group_norm(x, 2, eps=1e-3), (3, 6)),
    "poly_norm": Case(ops.poly_norm, poly_formula, (3, 5, 17), (3,), (1,)),
    "modulated_rms_norm": Case(ops.modulated_rms_norm, modulated_formula, (3, 5, 17), (17,), (3, 17), (3, 17),
                               factor=6, gradients=12),
    "modulated_rms_norm_gemma": Case(
        lambda x, w, c, d: ops.modulated_rms_norm(x, w, c, d, offset=1.0, casting="gemma"),
        lambda x, w, c, d: modulated_formula(x, w, c, d, 1.0), (3, 5, 17), (17,), (3, 1, 17), (3, 1, 17), factor=6,
        gradients=12),
    "modulated_rms_norm_of_tokens": Case(ops.modulated_rms_norm, modulated_formula, (3, 5, 17), (17,), (3, 5, 17),
                                         (3, 5, 17), factor=6, gradients=12),
    "modulated_rms_norm_scale": Case(lambda x, w, c: ops.modulated_rms_norm(x, w, c),
                                     lambda x, w, c: modulated_formula(x, w, c, torch.zeros_like(c)), (3, 5, 17),
                                     (17,), (17,), factor=6, gradients=12),
    "dyt": Case(ops.dyt, lambda x, a, g, b: g * torch.tanh(a * x) + b, (3, 5, 17), (1,), (17,), (17,)),
    "dyt_without_beta": Case(ops.dyt, lambda x, a, g: g * torch.tanh(a * x), (3, 5, 17), (1,), (17,)),
}
