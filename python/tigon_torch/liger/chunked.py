"""Functions with the arguments of the autograd.Function classes of liger_kernel.chunked_loss, over tigon_torch.ops.

chunk_size and compiled have no effect. Gradients of what is returned beside a loss are none, as Liger's.
"""
import torch

from .. import ops
from .functions import dapo_denominator, replaces


def _logits_of(x, weight, bias):
    """Of every sequence of x [batch, len, hidden] the sum of its logits over len and vocabulary."""
    with torch.no_grad():
        x, weight = x.float(), weight.sum(0, dtype=torch.float32)
        return x.sum(1) @ weight + (0.0 if bias is None else x.shape[1] * bias.sum(dtype=torch.float32))


def _of_pairs(result, x, weight, bias, *more):
    """(loss, what Liger returns beside it)."""
    loss, results = result
    chosen, rejected = (_logits_of(x, weight, bias) / (x.shape[1] * weight.shape[0])).chunk(2)
    named = [results[name] for name in ("chosen_logps", "rejected_logps")]
    named += [chosen.mean(), rejected.mean(), results["nll_loss"].reshape(())]
    return loss, (*named, results["chosen_rewards"], results["rejected_rewards"], *more)


@replaces("chunked_loss.LigerFusedLinearDPOFunction", "fused_linear_preference")
def dpo(_input, weight, target, bias=None, ref_input=None, ref_weight=None, ref_bias=None, ignore_index=-100, beta=0.1,
        compute_nll_loss=False, compiled=True, use_ref_model=True, average_log_prob=False, chunk_size=1,
        loss_type="sigmoid", label_smoothing=0.0, discopop_tau=0.05, alpha=1.0):
    if loss_type == "ipo":
        raise NotImplementedError("tigon: LigerFusedLinearDPOFunction: loss_type is 'ipo'; expected another one, as of "
                                  "Liger's own (tigon_torch.losses.FusedLinearDPOLoss has it)")
    reference = (ref_input, ref_weight, ref_bias) if use_ref_model else (None,) * 3
    smoothing = label_smoothing if loss_type in ("exo_pair", "robust") else 0.0
    result = ops.fused_linear_dpo(_input, weight, target, bias, *reference, loss=loss_type, beta=beta,
                                  label_smoothing=smoothing, discopop_tau=discopop_tau,
                                  compute_nll_loss=compute_nll_loss, average_log_prob=average_log_prob, alpha=alpha,
                                  ignore_index=ignore_index, metrics=True)
    return _of_pairs(result, _input, weight, bias)


@replaces("chunked_loss.LigerFusedLinearCPOFunction", "fused_linear_preference")
def cpo(_input, weight, target, bias=None, ignore_index=-100, beta=0.1, alpha=1.0, label_smoothing=0.0,
        compute_nll_loss=True, compiled=True, average_log_prob=False, chunk_size=1):
    result = ops.fused_linear_cpo(_input, weight, target, bias, beta, label_smoothing, compute_nll_loss,
                                  average_log_prob, alpha, ignore_index, metrics=True)
    return _of_pairs(result, _input, weight, bias)


@replaces("chunked_loss.LigerFusedLinearSimPOFunction", "fused_linear_preference")
def simpo(_input, weight, target, bias=None, ignore_index=-100, beta=0.1, alpha=1.0, label_smoothing=0.0,
          compute_nll_loss=False, compiled=True, gamma=0.5, chunk_size=1):
    result = ops.fused_linear_simpo(_input, weight, target, bias, beta, gamma, label_smoothing, compute_nll_loss, alpha,
                                    ignore_index, metrics=True)
    return _of_pairs(result, _input, weight, bias)


@replaces("chunked_loss.LigerFusedLinearORPOFunction", "fused_linear_preference")
def orpo(_input, weight, target, bias=None, ignore_index=-100, beta=0.1, compute_nll_loss=True, nll_target=None,
         compiled=True, chunk_size=1):
    result = ops.fused_linear_orpo(_input, weight, target, bias, nll_target, beta, compute_nll_loss,
                                   ignore_index=ignore_index, metrics=True)
    return _of_pairs(result, _input, weight, bias, *result[1]["metrics"].unbind())


@replaces("chunked_loss.LigerFusedLinearKTOFunction", "fused_linear_preference")
def kto(_input, weight, target, preference_labels, bias=None, ref_input=None, ref_weight=None, ref_bias=None, kl=None,
        ignore_index=-100, beta=0.1, compiled=True, use_ref_model=True, average_log_prob=False, chunk_size=1):
    reference = (ref_input, ref_weight, ref_bias) if use_ref_model else (None,) * 3
    loss, results = ops.fused_linear_kto(_input, weight, target, preference_labels, bias, kl, *reference, beta=beta,
                                         average_log_prob=average_log_prob, ignore_index=ignore_index, metrics=True)
    wanted = preference_labels != 0
    beside = []
    for value in (results["logps"], _logits_of(_input, weight, bias), results["rewards"]):
        beside += [value[wanted].sum(), value[~wanted].sum()]
    return loss, tuple(beside)


def _distillation(function, student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias,
                  teacher_bias, **options):
    return function(student_input, student_weight, true_labels, teacher_input, teacher_weight, bias=student_bias,
                    teacher_bias=teacher_bias, **options)


@replaces("chunked_loss.LigerFusedLinearJSDFunction", "fused_linear_distillation")
def jsd(student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias, teacher_bias,
        weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, ignore_index=-100, temperature=1.0, compiled=True,
        chunk_size=1024, return_soft_hard_loss=False):
    return _distillation(ops.fused_linear_jsd_distillation, student_input, student_weight, teacher_input,
                         teacher_weight, true_labels, student_bias, teacher_bias, weight_hard=weight_hard_loss,
                         weight_soft=weight_soft_loss, beta=beta, temperature=temperature, ignore_index=ignore_index,
                         return_soft_hard_loss=return_soft_hard_loss)


@replaces("chunked_loss.LigerFusedLinearCosineSimilarityFunction", "fused_linear_distillation")
def cosine(student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias, teacher_bias,
           weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, ignore_index=-100, temperature=1.0, compiled=True,
           chunk_size=1024, return_soft_hard_loss=False):
    return _distillation(ops.fused_linear_cosine_distillation, student_input, student_weight, teacher_input,
                         teacher_weight, true_labels, student_bias, teacher_bias, weight_hard=weight_hard_loss,
                         weight_soft=weight_soft_loss, beta=beta, ignore_index=ignore_index,
                         return_soft_hard_loss=return_soft_hard_loss)


@replaces("chunked_loss._ChunkedSelectiveLogProbFunction", "fused_linear_scaled_cross_entropy")
def selective_log_probs(hidden, weight, targets, bias, temperature, vocab_chunk_size):
    return ops.logprobs(hidden, weight, targets, bias, temperature)


@replaces("chunked_loss.LigerFusedLinearGRPOFunction", "fused_linear_grpo")
def grpo(_input, weight, selected_token_ids, attention_mask, advantages, bias=None, ref_per_token_logps=None,
         old_per_token_logps=None, ref_input=None, ref_weight=None, ref_bias=None, beta=0.04, epsilon_low=0.2,
         epsilon_high=0.2, loss_type="dapo", max_completion_length=None, importance_sampling_level="token",
         sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, temperature=1.0, compiled=True, use_ref_model=True,
         chunk_size=1, vllm_is_ratio=None, delta=None, use_bias_correction_kl=False, vespo_k_pos=2.0,
         vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0, num_items_in_batch=None):
    reference = {}
    if use_ref_model and beta != 0.0:  # without one Liger's penalty is 0, and so is its gradient
        reference = {"ref_logp": ref_per_token_logps} if ref_per_token_logps is not None else \
            {"ref_x": ref_input, "ref_weight": ref_weight, "ref_bias": ref_bias}
    if vllm_is_ratio is not None and vllm_is_ratio.dim() == 1:
        vllm_is_ratio = vllm_is_ratio[:, None]
    mask, penalty = attention_mask.float(), beta if reference else 0.0
    if loss_type == "dr_grpo":
        reference["max_length"] = max_completion_length
    if loss_type in ("dapo", "cispo", "vespo"):
        reference["denominator"] = dapo_denominator(mask, num_items_in_batch).item()
    loss, results = ops.fused_linear_grpo(
        _input, weight, selected_token_ids, advantages.float(), bias, old_per_token_logps, mask=mask,
        sampling_ratio=vllm_is_ratio, type=loss_type, level=importance_sampling_level, luspo_reduction="padded",
        bias_corrected_kl=use_bias_correction_kl, temperature=temperature, beta=penalty, epsilon_low=epsilon_low,
        epsilon_high=epsilon_high, delta=delta, tau_positive=sapo_temperature_pos, tau_negative=sapo_temperature_neg,
        k_positive=vespo_k_pos, lambda_positive=vespo_lambda_pos, k_negative=vespo_k_neg,
        lambda_negative=vespo_lambda_neg, metrics=True, **reference)
    kl = () if beta == 0.0 else (results.get("kl", torch.zeros((), device=loss.device)),)
    return loss, (*kl, results["clipped"])
