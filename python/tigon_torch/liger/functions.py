"""Functions with the arguments of the autograd.Function classes of liger_kernel.ops, over tigon_torch.ops.

What says how Liger's kernels run (in_place, row_mode, chunk_mem_const, block sizes) is taken and has no effect. Results
have the types that Liger gives them. NotImplemented stands for what tigon does not have: Liger's own code then runs.
"""
import torch
import torch.nn.functional as torch_functional

from .. import ops
from ..arguments import refuse
from ..drop_in import functional as F
from ..drop_in.losses import LigerFusedCETVDLoss
from ..drop_in.rotations import liger_llama4_text_rotary_pos_emb

FUNCTIONS: dict = {}  # by the names of Liger's classes: (function, the operators of tigon that it calls)
IMPLEMENTATIONS: dict = {}  # by the names of operators that Liger dispatches: the same


def replaces(name: str, *operators: str, dispatched: str | None = None):
    """Registers a function for a class of Liger's, and for the operator that Liger dispatches by another name."""
    def register(function):
        FUNCTIONS[name] = function, operators
        if dispatched is not None:
            IMPLEMENTATIONS[dispatched] = function, operators
        return function

    return register


@replaces("LigerRMSNormFunction", "rms_norm", dispatched="rms_norm")
def rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
    return ops.rms_norm(X, W, eps, offset, casting_mode)


@replaces("LigerFusedAddRMSNormFunction", "fused_add_rms_norm", dispatched="fused_add_rms_norm")
def fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=False):
    return ops.fused_add_rms_norm(X, R, W, eps, offset, casting_mode)


@replaces("LigerLayerNormFunction", "layer_norm", dispatched="layer_norm")
def layer_norm(X, W, B, eps):
    return ops.layer_norm(X, W, B, eps)


@replaces("LigerModulatedRMSNormFunction", "modulated_rms_norm")
def modulated_rms_norm(X, W, scale, shift, eps, offset=0.0, casting_mode="llama", in_place=True):
    return ops.modulated_rms_norm(X, W, scale, shift, eps, offset, casting_mode)


@replaces("LigerGroupNormFunction", "group_norm")
def group_norm(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps):
    return F.liger_group_norm(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps)


@replaces("LigerPolyNormFunction", "poly_norm")
def poly_norm(X, W, B, eps=1e-06, in_place=True):
    return ops.poly_norm(X, W, B, eps)


@replaces("LigerDyTFunction", "dyt")
def dyt(x, alpha, gamma, beta):
    return ops.dyt(x, alpha, gamma, beta)


@replaces("LigerSiLUMulFunction", "swiglu", dispatched="swiglu")
def swiglu(a, b, gate_multiplier=1.0, down_multiplier=1.0):
    return ops.swiglu(a, b, gate_multiplier, down_multiplier)


@replaces("LigerFusedGateUpSiLUMulFunction", "swiglu")
def swiglu_of_halves(y, in_place=False):
    return ops.swiglu(*y.chunk(2, -1))


@replaces("LigerGELUMulFunction", "geglu", dispatched="geglu")
def geglu(a, b):
    return ops.geglu(a, b)


@replaces("LigerReLUSquaredFunction", "relu_squared")
def relu_squared(X):
    return ops.relu_squared(X)


@replaces("LigerMLPFunction", "swiglu")
def mlp(input, gate_weight, up_weight, down_weight, gate_multiplier=1.0, down_multiplier=1.0):
    linear = torch_functional.linear
    y = ops.swiglu(linear(input, gate_weight), linear(input, up_weight), gate_multiplier)
    y = linear(y, down_weight)
    return y if down_multiplier == 1.0 else y * down_multiplier


@replaces("LigerFusedMoEFunction", "moe")
def moe(x, gate_up_proj, down_proj, top_k_index, top_k_weights):
    return ops.moe(x, gate_up_proj, down_proj, top_k_index, top_k_weights)


@replaces("LigerEmbeddingFunction", "embedding")
def embedding(embeddings, indices):
    return ops.embedding(embeddings, indices)


@replaces("LigerSoftmaxFunction", "softmax", dispatched="softmax")
def softmax(input_):
    return ops.softmax(input_)


@replaces("LigerSparsemaxFunction", "sparsemax")
def sparsemax(x, dim):
    return ops.sparsemax(x, dim)


@replaces("LigerRopeFunction", "rope", dispatched="rope")
def rope(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    return F.liger_rope(q, k, cos, sin, position_ids, unsqueeze_dim, rotary_dim)


@replaces("LigerQwen2VLMRopeFunction", "mrope")
def mrope(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    return F.liger_qwen2vl_mrope(q, k, cos, sin, mrope_section, unsqueeze_dim)


@replaces("LigerLlama4RopeFunction", "rope")
def llama4_rope(q, k, freqs_cis, BLOCK_SIZE=None):
    if not torch.is_complex(freqs_cis):
        freqs_cis = torch.view_as_complex(freqs_cis.float().contiguous())
    freqs_cis = freqs_cis.reshape(-1, freqs_cis.shape[-1])[: q.shape[1]]
    return liger_llama4_text_rotary_pos_emb(q, k, freqs_cis[None])


@replaces("LigerFusedNeighborhoodAttentionFunction", "neighborhood_attention")
def neighborhood_attention(query, key, value, kernel_size=7, dilation=1, scale=None):
    return ops.neighborhood_attention(query, key, value, kernel_size, dilation, scale)


@replaces("LigerMultiTokenAttentionFunction", "multi_token_attention")
def multi_token_attention(scores, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, sparse=False):
    return ops.multi_token_attention(scores, weight, bias, stride, padding, dilation, groups, sparse)


@replaces("LigerAttnResFunction", "attn_res")
def attn_res(V_stacked, w_query, w_norm, eps):
    return ops.attn_res(V_stacked, w_query, w_norm, eps)


@replaces("LigerMHCCoeffsFunction", "mhc_coeffs")
def mhc_coeffs(x, phi, b, alpha_pre, alpha_post, alpha_res, allow_fp32, tmax, rms_eps, pre_eps, sinkhorn_eps,
               post_mult):
    return ops.mhc_coeffs(x, phi, b, alpha_pre, alpha_post, alpha_res, tmax, rms_eps, pre_eps, sinkhorn_eps, post_mult)


@replaces("LigerMHCPreFunction", "mhc_pre")
def mhc_pre(x, h_pre):
    return ops.mhc_pre(x, h_pre)


@replaces("LigerMHCPostResFunction", "mhc_post_res")
def mhc_post_res(x, f_out, h_post, h_res):
    return ops.mhc_post_res(x, f_out, h_post, h_res)


def matmul_of_int2(a, b):
    """matmul of Liger's mm_int8int2, which has no class of autograd.Function. Packing is PyTorch's code there."""
    return ops.matmul_int8_int2(a, b)


def _four(results, dtype):
    """(loss, z_loss, token_accuracy, predicted_tokens), the first two in this type."""
    results = tuple(results) if isinstance(results, tuple) else (results, None, None, None)
    return *(t if t is None else t.to(dtype) for t in results[:2]), *results[2:]


@replaces("LigerCrossEntropyFunction", "cross_entropy", dispatched="cross_entropy")
def cross_entropy(_input, target, weight, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0,
                  reduction="mean", softcap=None, return_z_loss=False, return_token_accuracy=False,
                  return_predicted_tokens=False):
    results = ops.cross_entropy(_input, target, ignore_index, label_smoothing, lse_square_scale, softcap, reduction,
                                weight, return_z_loss, return_token_accuracy, return_predicted_tokens)
    return _four(results, _input.dtype)


@replaces("LigerFusedLinearCrossEntropyFunction", "fused_linear_cross_entropy", dispatched="fused_linear_cross_entropy")
def fused_linear_cross_entropy(_input, weight, target, bias=None, ce_weight=None, ignore_index=-100,
                               lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None,
                               return_z_loss=False, accum_dtype=None, use_token_scaling=False,
                               return_token_accuracy=False, return_predicted_tokens=False, ce_impl=None, ce_mode=None,
                               chunk_mem_const=1):
    results = F.liger_fused_linear_cross_entropy(
        _input, weight, target, bias, ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap,
        return_z_loss, accum_dtype, use_token_scaling, return_token_accuracy, return_predicted_tokens)
    return _four(results, torch.float64 if _input.dtype == torch.float64 else torch.float32)


def log_probs_of_ids(logits, input_ids, temperature=0.9, mask=None):
    """fused_selective_log_softmax of Liger, which has no gradient."""
    ids = input_ids[:, -(logits.shape[1] - 1):]
    with torch.no_grad():
        logp = ops.selective_log_softmax(logits, ids, temperature)
        return logp if mask is None else logp.masked_fill(mask[:, -ids.shape[1]:] == 0, 0.0)


@replaces("LigerFusedLinearScaledCrossEntropyFunction", "fused_linear_scaled_cross_entropy")
def scaled_cross_entropy(_input, weight, target, temperature=1.0, ignore_index=-100, m_tiles_per_cluster=1,
                         return_entropy=False, selected_token_ids=None):
    if selected_token_ids is not None:
        return NotImplemented
    return ops.fused_linear_scaled_cross_entropy(_input, weight, target, None, temperature, ignore_index,
                                                 return_entropy)


@replaces("LigerFusedLinearScaledCrossEntropyTPFunction", "vocab_parallel_scaled_cross_entropy")
def scaled_cross_entropy_tp(_input, weight, target, tp_group, temperature=1.0, ignore_index=-100, tiles_per_reduce=1,
                            return_entropy=False):
    return ops.vocab_parallel_scaled_cross_entropy(_input, weight, target, None, tp_group, temperature, ignore_index,
                                                   return_entropy)


@replaces("LigerVocabParallelCEFunction", "vocab_parallel_cross_entropy")
def vocab_parallel_cross_entropy(vocab_parallel_logits, target, tp_group, ignore_index, label_smoothing,
                                 label_smoothing_formula, label_smoothing_mode):
    return ops.vocab_parallel_cross_entropy(vocab_parallel_logits, target, tp_group,
                                            -100 if ignore_index is None else ignore_index, label_smoothing,
                                            label_smoothing_formula, label_smoothing_mode)


@replaces("LigerJSDFunction", "jsd", dispatched="jsd")
def jsd(_input, target, shift_labels=None, beta=0.5, ignore_index=-100, jsd_impl=None, jsd_mode=None):
    return ops.jsd(_input, target, beta, shift_labels, ignore_index).to(_input.dtype)


@replaces("LigerKLDivLossFunction", "kl_div", dispatched="kl_div")
def kl_div(y_pred, y_true, reduction="batchmean", log_target=False, eps=1e-10):
    return ops.kl_div(y_pred, y_true, log_target, eps, reduction)


@replaces("LigerTVDLossFunction", "tvd")
def tvd(p, q, shift_labels=None, reduction="batchmean", ignore_index=-100):
    return ops.tvd(p, q, shift_labels, reduction, ignore_index)


@replaces("LigerFusedCETVDFunction", "cross_entropy", "softmax", "tvd")
def ce_tvd(student_logits, teacher_logits, target, ignore_index=-100):
    return LigerFusedCETVDLoss(ignore_index)(student_logits, teacher_logits, target)


@replaces("LigerFusedLinearJSDFunction", "fused_linear_distillation", dispatched="fused_linear_jsd")
def fused_linear_jsd(student_input, student_weight, teacher_input, teacher_weight, shift_labels=None, jsd_beta=0.5,
                     ignore_index=-100, temperature=1.0, accum_dtype=None, jsd_impl=None, jsd_mode=None):
    return F.liger_fused_linear_jsd(student_input, student_weight, teacher_input, teacher_weight, shift_labels,
                                    jsd_beta, ignore_index, temperature, accum_dtype)


@replaces("LigerFusedLinearKLDivFunction", "fused_linear_kl_div")
def fused_linear_kl_div(student_input, student_weight, target, shift_labels=None, reduction="batchmean",
                        ignore_index=-100, temperature=1.0, eps=1e-10, accum_dtype=None):
    return F.liger_fused_linear_kl_div(student_input, student_weight, target, shift_labels, reduction, ignore_index,
                                       temperature, eps, accum_dtype)


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum().clamp(min=1.0)


def dapo_denominator(mask, num_items_in_batch):
    """What Liger divides by: the tokens of a process in the mean."""
    from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase

    return LigerFusedLinearPPOBase._compute_dapo_normalizer(mask, num_items_in_batch=num_items_in_batch)


def _weighted_policy_loss(logits, ids, advantages, old_logp, ref_logp, mask, temperature, beta, bias_corrected, weights,
                          reduce, num_items):
    """VESPO with weights of sequences that the caller has made: of tigon's log-probabilities."""
    logp = ops.selective_log_softmax(logits, ids, temperature)
    loss, kl = -weights.reshape(-1, 1) * advantages.float()[:, None] * logp, None
    if beta != 0.0:
        kl = torch.exp(ref_logp - logp) - (ref_logp - logp) - 1
        ratio = torch.exp(logp - (logp.detach() if old_logp is None else old_logp))
        loss = loss + beta * kl * (ratio if bias_corrected else 1.0)
    clipped = torch.zeros_like(loss)
    if not reduce:
        return loss * mask, None if kl is None else kl.detach() * mask, clipped
    loss = (loss * mask).sum() / dapo_denominator(mask, num_items)
    return loss, None if kl is None else masked_mean(kl.detach(), mask), masked_mean(clipped, mask)


@replaces("GrpoLossFunction", "grpo_loss", "selective_log_softmax")
def grpo_loss(logits, old_logp, ref_logp, completion_ids, advantages, completion_mask, temperature, beta, eps_low,
              eps_high, inplace, loss_type="grpo", max_completion_length=None, reduce=True,
              importance_sampling_level="token", sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
              vllm_is_ratio=None, delta=None, use_bias_correction_kl=False, num_items_in_batch=None, phi_seq=None):
    ids = completion_ids[:, -(logits.shape[1] - 1):]
    mask = torch.ones(ids.shape, device=ids.device) if completion_mask is None else completion_mask.float()
    if beta != 0.0 and ref_logp is None:
        refuse("GrpoLossFunction", "ref_logp", None, "a tensor, as beta is not 0")
    if phi_seq is not None:
        return _weighted_policy_loss(logits, ids, advantages, old_logp, ref_logp, mask, temperature, beta,
                                     use_bias_correction_kl, phi_seq, reduce, num_items_in_batch)
    if vllm_is_ratio is not None and vllm_is_ratio.dim() == 1:
        vllm_is_ratio = vllm_is_ratio[:, None]
    options = {}
    if loss_type == "dr_grpo":
        options["max_length"] = max_completion_length or ids.shape[1]
    if reduce and loss_type in ("dapo", "cispo"):
        options["denominator"] = dapo_denominator(mask, num_items_in_batch).item()
    loss, results = ops.grpo_loss(
        logits, ids, advantages.float(), old_logp, ref_logp if beta != 0.0 else None, mask, vllm_is_ratio, loss_type,
        importance_sampling_level, "padded", reduce, use_bias_correction_kl, temperature, beta, eps_low, eps_high,
        delta, tau_positive=sapo_temperature_pos, tau_negative=sapo_temperature_neg, metrics=True, **options)
    return loss, results.get("kl"), results["clipped"]
