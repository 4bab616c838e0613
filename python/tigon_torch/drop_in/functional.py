"""The functions of liger_kernel.transformers.functional, by their names and arguments, over tigon_torch.ops.

What says how Liger's kernels run (in_place, chunk_mem_const, allow_fp32) is taken and has no effect: tigon never writes
over its arguments, and chooses by itself. accum_dtype: sums are in f32 (f64 for f64) whatever is asked; a type below
that is refused.
"""
import torch

from .. import ops
from ..arguments import refuse
from ..ops import CrossEntropyOutput
from ..ops import mhc_apply as liger_mhc_apply
from ..ops import mhc_pre as liger_mhc_pre
from ..ops import mhc_post_res as liger_mhc_post_res
from ..ops import relu_squared as liger_relu_squared
from .rotations import expect_heads_before_tokens


def _sums_of(op, x, accum_dtype):
    if accum_dtype is not None and accum_dtype != (torch.float64 if x.dtype == torch.float64 else torch.float32):
        refuse(op, "accum_dtype", accum_dtype, "None or torch.float32, the type of all sums but those of f64")


def _as_it_is(op, **arguments):
    for name, (value, expected) in arguments.items():
        if value != expected:
            refuse(op, name, repr(value), repr(expected))


def liger_cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                        label_smoothing=0.0, lse_square_scale=0.0, softcap=None, return_z_loss=False,
                        return_token_accuracy=False, return_predicted_tokens=False):
    _as_it_is("liger_cross_entropy", size_average=(size_average, None), reduce=(reduce, None))
    return ops.cross_entropy(input, target, ignore_index, label_smoothing, lse_square_scale, softcap, reduction, weight,
                             return_z_loss, return_token_accuracy, return_predicted_tokens)


def liger_fused_linear_cross_entropy(input, weight, target, bias=None, ce_weight=None, ignore_index=-100,
                                     lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None,
                                     return_z_loss=False, accum_dtype=None, use_token_scaling=False,
                                     return_token_accuracy=False, return_predicted_tokens=False, chunk_mem_const=1):
    _sums_of("liger_fused_linear_cross_entropy", input, accum_dtype)
    return ops.fused_linear_cross_entropy(input, weight, target, bias, ignore_index, label_smoothing, lse_square_scale,
                                          softcap, reduction, ce_weight, use_token_scaling, return_z_loss,
                                          return_token_accuracy, return_predicted_tokens)


def liger_fused_linear_scaled_cross_entropy_tp(input, weight, target, tp_group, temperature=1.0, ignore_index=-100,
                                               tiles_per_reduce=1, return_entropy=False):
    return ops.vocab_parallel_scaled_cross_entropy(input, weight, target, None, tp_group, temperature, ignore_index,
                                                   return_entropy)


def liger_fused_linear_jsd(student_input, student_weight, teacher_input, teacher_weight, shift_labels=None,
                           jsd_beta=0.5, ignore_index=-100, temperature=1.0, accum_dtype=None):
    _sums_of("liger_fused_linear_jsd", student_input, accum_dtype)
    return ops.fused_linear_jsd(student_input, student_weight, teacher_input, teacher_weight, shift_labels, jsd_beta,
                                ignore_index, temperature)


def liger_fused_linear_kl_div(student_input, student_weight, target, shift_labels=None, reduction="batchmean",
                              ignore_index=-100, temperature=1.0, eps=1e-10, accum_dtype=None):
    _sums_of("liger_fused_linear_kl_div", student_input, accum_dtype)
    return ops.fused_linear_kl_div(student_input, student_weight, target, shift_labels, reduction, False, eps,
                                   temperature, ignore_index)


def liger_geglu(a, b):
    return ops.geglu(a, b)


def liger_group_norm(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps):
    _as_it_is("liger_group_norm", num_channels=(num_channels, X.shape[1]))
    return ops.group_norm(X, num_groups, affine_scaling_weight, affine_shifting_bias, eps)


def liger_jsd(input, target, shift_labels=None, beta=0.5, ignore_index=-100):
    return ops.jsd(input, target, beta, shift_labels, ignore_index)


def liger_kl_div(input, target, size_average=True, reduce=True, reduction="mean", log_target=False, eps=1e-10):
    _as_it_is("liger_kl_div", size_average=(size_average, True), reduce=(reduce, True))
    return ops.kl_div(input, target, log_target, eps, reduction)


def liger_sparsemax(input, dim=-1):
    return ops.sparsemax(input, dim)


def liger_multi_token_attention(scores, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, sparse=False):
    return ops.multi_token_attention(scores, weight, bias, stride, padding, dilation, groups, sparse)


def liger_fused_neighborhood_attention(query, key, value, kernel_size=7, dilation=1, scale=None):
    return ops.neighborhood_attention(query, key, value, kernel_size, dilation, scale)


def liger_tvd(input, target, shift_labels=None, reduction="mean", ignore_index=-100):
    return ops.tvd(input, target, shift_labels, reduction, ignore_index)


def liger_layer_norm(X, W, B, eps):
    return ops.layer_norm(X, W, B, eps)


def liger_qwen2vl_mrope(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    _as_it_is("liger_qwen2vl_mrope", unsqueeze_dim=(unsqueeze_dim, 1))
    return ops.mrope(q, k, cos, sin, mrope_section)


def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    return ops.rms_norm(X, W, eps, offset, casting_mode)


def liger_modulated_rms_norm(X, W, scale, shift=None, eps=1e-6, offset=0.0, casting_mode="llama", in_place=True):
    return ops.modulated_rms_norm(X, W, scale, shift, eps, offset, casting_mode)


def liger_poly_norm(X, W, B, eps=1e-6, in_place=True):
    return ops.poly_norm(X, W, B, eps)


def liger_fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    return ops.fused_add_rms_norm(X, R, W, eps, offset, casting_mode)


def liger_rope(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    expect_heads_before_tokens("liger_rope", cos, unsqueeze_dim)
    return ops.rope(q, k, cos, sin, rotary_dim)


def liger_swiglu(a, b):
    return ops.swiglu(a, b)


def liger_softmax(x):
    return ops.softmax(x)


def liger_dyt(x, alpha, gamma, beta):
    return ops.dyt(x, alpha, gamma, beta)


def liger_mhc_coeffs(x, phi, b, alpha_pre, alpha_post, alpha_res, *, allow_fp32=False, tmax=20, rms_eps=1e-6,
                     pre_eps=0.0, sinkhorn_eps=1e-6, post_mult=2.0):
    return ops.mhc_coeffs(x, phi, b, alpha_pre, alpha_post, alpha_res, int(tmax), float(rms_eps), float(pre_eps),
                          float(sinkhorn_eps), float(post_mult))


def liger_mhc_forward(x, layer, phi, b, alpha_pre, alpha_post, alpha_res, *, allow_fp32=False, tmax=20, rms_eps=1e-6,
                      pre_eps=0.0, sinkhorn_eps=1e-6, post_mult=2.0, return_coeffs=False):
    return ops.mhc_forward(x, layer, phi, b, alpha_pre, alpha_post, alpha_res, return_coeffs, tmax=tmax,
                           rms_eps=rms_eps, pre_eps=pre_eps, sinkhorn_eps=sinkhorn_eps, post_mult=post_mult)


def liger_attn_res(V, w_query, w_norm, eps=1e-6):
    return ops.attn_res(V, w_query, w_norm, eps)


__all__ = ["CrossEntropyOutput", *(name for name in list(globals()) if name.startswith("liger_"))]
