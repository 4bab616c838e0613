"""Policy losses."""
from torch import Tensor

from ..arguments import above_zero, checked, expect_shape, one_of
from ..declared import Made, operator, sums
from ..registration import autograd, fake
from .common import (
    _autocast, _half, _in_type_of, _layer_gradients, _made, _ops, _or_none, _rows, _sums, _wanted, _wide)


operator("selective_log_softmax(Tensor logits, Tensor ids, int batch, float temperature) -> logp saved",
         lambda logits, ids, *_: (sums(logits, *ids.shape), sums(logits, _rows(logits), 2)),
         keeps="logits ids saved", gradients="logits")


@checked
def selective_log_softmax(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature) at the ids [..., len] of logits [..., len, vocab], or [..., len + 1, vocab] as a
    model leaves them: the last position predicts nothing. In f32 (f64 for f64); nothing but the logits and two numbers a
    row is kept."""
    op = "selective_log_softmax"
    shape = logits.shape[:-1]
    if ids.dim() == 0 or shape != ids.shape and shape != (*ids.shape[:-1], ids.shape[-1] + 1):
        expect_shape(op, "ids", ids, shape, ", one a row, or without the last of each sequence")
    return _ops.selective_log_softmax(logits, ids, ids.shape[:-1].numel(), temperature)[0]


_POLICY = {"grpo": 0, "bnpo": 1, "dr_grpo": 2, "dapo": 3, "luspo": 4, "cispo": 5, "sapo": 6, "vespo": 7, "gmpo": 8}


def _policy_kind(op, type, level, luspo_reduction):
    return (one_of(_POLICY, op, "type", type), one_of({"token": 0, "sequence": 1}, op, "level", level),
            one_of({"sequences": 0, "tokens": 1, "padded": 2}, op, "luspo_reduction", luspo_reduction))


def _limits(op, **limits):
    return (above_zero(op, name, limit) for name, limit in limits.items())


@checked
def grpo_loss(logits: Tensor, ids: Tensor, advantages: Tensor, old_logp: Tensor | None = None,
              ref_logp: Tensor | None = None, mask: Tensor | None = None, sampling_ratio: Tensor | None = None,
              type: str = "dapo", level: str = "token", luspo_reduction: str = "sequences", reduce: bool = True,
              bias_corrected_kl: bool = False, temperature: float = 1.0, beta: float = 0.0, epsilon_low: float = 0.2,
              epsilon_high: float = 0.2, delta: float | None = None, max_log_ratio: float | None = None,
              tau_positive: float = 1.0, tau_negative: float = 1.05, k_positive: float = 2.0,
              lambda_positive: float = 3.0, k_negative: float = 3.0, lambda_negative: float = 2.0,
              max_length: float | None = None, denominator: float | None = None, metrics: bool = False):
    """The losses of the GRPO family on logits [batch, len or len + 1, vocab] of ids [batch, len].

    advantages [batch]; old_logp, ref_logp, mask [batch, len]; sampling_ratio [batch, len] or [batch, 1]. The options
    are those of tigon::policy_options, None where a 0 there is no limit. With reduce=False the result is one number a
    token. With metrics=True it is (loss, {"kl", "clipped"}); kl is there with ref_logp.
    """
    delta, max_log_ratio, max_length, denominator = _limits(
        "grpo_loss", delta=delta, max_log_ratio=max_log_ratio, max_length=max_length, denominator=denominator)
    numbers = [temperature, beta, epsilon_low, epsilon_high, delta, max_log_ratio, tau_positive, tau_negative,
               k_positive, lambda_positive, k_negative, lambda_negative, max_length, denominator]
    if _half(logits):
        logits = logits.float()
    loss, kl, clipped, _ = _ops.grpo_loss(
        logits, ids, advantages, old_logp, ref_logp, mask, sampling_ratio,
        *_policy_kind("grpo_loss", type, level, luspo_reduction), reduce, bias_corrected_kl,
        [float(n) for n in numbers])
    if not metrics:
        return loss
    return loss, {"clipped": clipped} if ref_logp is None else {"clipped": clipped, "kl": kl}


@fake("grpo_loss")
def _(logits, ids, advantages, old_logp, ref_logp, mask, sampling_ratio, type, level, luspo, reduce, *_):
    def made():
        return logits.new_empty(() if reduce else ids.shape, dtype=_sums(logits))
    kl = made() if ref_logp is not None else logits.new_empty((0,), dtype=_sums(logits))
    return made(), kl, made(), logits.new_empty((_rows(logits), 2), dtype=_sums(logits))


fake("grpo_loss_backward", lambda upstream, saved, logits, *_: _made(logits))


def _grpo_loss_context(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(output[3], *inputs[:7])
    ctx.options = inputs[7:]


def _grpo_loss_backward(ctx, upstream, *_):
    return (_ops.grpo_loss_backward(upstream, *ctx.saved_tensors, *ctx.options),) + (None,) * 12


autograd("grpo_loss", _grpo_loss_backward, _grpo_loss_context)


@checked
def fused_linear_grpo(x: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor, bias: Tensor | None = None,
                      old_logp: Tensor | None = None, ref_logp: Tensor | None = None, mask: Tensor | None = None,
                      sampling_ratio: Tensor | None = None, ref_x: Tensor | None = None,
                      ref_weight: Tensor | None = None, ref_bias: Tensor | None = None, type: str = "dapo",
                      level: str = "token", luspo_reduction: str = "sequences", reduce: bool = True,
                      bias_corrected_kl: bool = False, temperature: float = 1.0, beta: float = 0.0,
                      epsilon_low: float = 0.2, epsilon_high: float = 0.2, delta: float | None = None,
                      max_log_ratio: float | None = None, tau_positive: float = 1.0, tau_negative: float = 1.05,
                      k_positive: float = 2.0, lambda_positive: float = 3.0, k_negative: float = 3.0,
                      lambda_negative: float = 2.0, max_length: float | None = None, denominator: float | None = None,
                      metrics: bool = False):
    """grpo_loss(x weight^T + bias, ids, ...) without the logits ever being in memory as a whole.

    x [batch, len or len + 1, hidden], weight [vocab, hidden], ids [batch, len]. The reference is ref_logp, or a layer
    (ref_x, ref_weight, ref_bias) at the same temperature. The gradients that are required are made in forward; with
    reduce=False, and in a second backward through a retained graph, the logits are made again.
    """
    delta, max_log_ratio, max_length, denominator = _limits(
        "fused_linear_grpo", delta=delta, max_log_ratio=max_log_ratio, max_length=max_length, denominator=denominator)
    numbers = [temperature, beta, epsilon_low, epsilon_high, delta, max_log_ratio, tau_positive, tau_negative,
               k_positive, lambda_positive, k_negative, lambda_negative, max_length, denominator]
    x, weight, ref_x, ref_weight = _autocast(x, weight, ref_x, ref_weight)
    if _half(x):
        x, weight, ref_x, ref_weight = map(_wide, (x, weight, ref_x, ref_weight))
    weight, ref_x, ref_weight = _in_type_of(x, "fused_linear_grpo", weight=weight, ref_x=ref_x, ref_weight=ref_weight)
    need = _wanted(x, weight, bias) if reduce else [False] * 3
    loss, kl, clipped = _ops.fused_linear_grpo(
        x, weight, bias, ids, advantages, old_logp, ref_logp, mask, sampling_ratio, ref_x, ref_weight, ref_bias, None,
        *_policy_kind("fused_linear_grpo", type, level, luspo_reduction), reduce, bias_corrected_kl,
        [float(n) for n in numbers], *need)[:3]
    if not metrics:
        return loss
    return loss, {"clipped": clipped} if ref_logp is None and ref_x is None else {"clipped": clipped, "kl": kl}


@fake("fused_linear_grpo")
def _(x, weight, bias, ids, advantages, old_logp, ref_logp, mask, sampling_ratio, ref_x, ref_weight, ref_bias, upstream,
      type, level, luspo, reduce, bias_corrected_kl, scalars, *need):
    def made():
        return x.new_empty(() if reduce else ids.shape, dtype=_sums(x))
    kl = x.new_empty((0,), dtype=_sums(x)) if ref_logp is None and ref_x is None else made()
    return made(), kl, made(), *_layer_gradients(x, weight, bias, *need)


def _fused_linear_grpo_context(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.options, need = inputs[13:19], inputs[19:]
    ctx.made = Made(output[3:] if any(need) else None)
    ctx.save_for_backward(*inputs[:12])


def _fused_linear_grpo_backward(ctx, upstream, *_):
    need = ctx.needs_input_grad[:3]
    if upstream is None:
        return (None,) * 22
    gradients = ctx.made.take(upstream)
    if gradients is None:
        gradients = _ops.fused_linear_grpo(*ctx.saved_tensors, upstream, *ctx.options, *need)[3:]
    return tuple(map(_or_none, gradients, need)) + (None,) * 19


autograd("fused_linear_grpo", _fused_linear_grpo_backward, _fused_linear_grpo_context)
